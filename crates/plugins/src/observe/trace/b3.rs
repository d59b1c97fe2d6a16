//! The context of a trace in the fields of Zipkin's B3: one field, or several.

use weir_plugin::Request;
use weir_wire::name::FieldName;

use super::{Caller, TraceContext, TraceId, parse_hex, push_span};

/// The names of the fields.
#[derive(Debug)]
pub(crate) struct Fields {
    single: FieldName,
    trace: FieldName,
    span: FieldName,
    parent: FieldName,
    sampled: FieldName,
    flags: FieldName,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            single: FieldName::constant("b3"),
            trace: FieldName::constant("x-b3-traceid"),
            span: FieldName::constant("x-b3-spanid"),
            parent: FieldName::constant("x-b3-parentspanid"),
            sampled: FieldName::constant("x-b3-sampled"),
            flags: FieldName::constant("x-b3-flags"),
        }
    }
}

/// Contents of the fields of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The caller's place, where ids are told and are right.
    pub(crate) caller: Option<Caller>,
    /// The caller's decision, with ids or without.
    pub(crate) is_sampled: Option<bool>,
    /// True if the trace is one for finding faults, which is sampled whatever the configuration says.
    pub(crate) is_debug: bool,
}

/// A single field that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl Fields {
    /// Reads the fields: the single one if it is there, else the others.
    ///
    /// # Errors
    /// The single field has no ids.
    pub(crate) fn read(&self, request: &Request) -> Result<Told, Broken> {
        let is_debug = request.field(&self.flags) == Some(b"1");
        if let Some(single) = request.field(&self.single) {
            let told = parse_single(single)?;
            return Ok(Told { is_debug: told.is_debug || is_debug, ..told });
        }
        let is_sampled = request.field(&self.sampled).and_then(decision);
        let optional = |name: &FieldName| request.field(name).map(|id| span_id(id).ok_or(())).transpose();
        let ids = (request.field(&self.trace).and_then(trace_id), optional(&self.span), optional(&self.parent));
        let caller = match ids {
            (Some(trace), Ok(span), Ok(_)) => Some(Caller { trace, span, is_sampled }),
            // Of ids that are broken none is believed.
            _ => None,
        };
        Ok(Told { caller, is_sampled, is_debug })
    }

    /// Tells the upstream the place of the request, in several fields.
    pub(crate) fn write(&self, context: &TraceContext, request: &mut Request, scratch: &mut Vec<u8>) {
        request.remove_field(&self.single);
        scratch.clear();
        context.trace.write(scratch);
        request.set_field(&self.trace, scratch);
        scratch.clear();
        push_span(context.span, scratch);
        request.set_field(&self.span, scratch);
        match context.parent {
            Some(parent) => {
                scratch.clear();
                push_span(parent, scratch);
                request.set_field(&self.parent, scratch);
            }
            None => request.remove_field(&self.parent),
        }
        request.set_field(&self.sampled, if context.is_sampled { b"1" } else { b"0" });
    }

    /// Tells the upstream the place of the request in the single field.
    pub(crate) fn write_single(&self, context: &TraceContext, request: &mut Request, scratch: &mut Vec<u8>) {
        scratch.clear();
        context.trace.write(scratch);
        scratch.push(b'-');
        push_span(context.span, scratch);
        scratch.extend_from_slice(if context.is_sampled { b"-1" } else { b"-0" });
        if let Some(parent) = context.parent {
            scratch.push(b'-');
            push_span(parent, scratch);
        }
        request.set_field(&self.single, scratch);
    }

    /// True if the request has the single field.
    pub(crate) fn is_single(&self, request: &Request) -> bool {
        request.field(&self.single).is_some()
    }

    /// Tells the upstream that the trace is one for finding faults.
    pub(crate) fn write_debug(&self, request: &mut Request) {
        request.set_field(&self.flags, b"1");
    }
}

fn decision(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

fn trace_id(text: &[u8]) -> Option<TraceId> {
    let is_short = match text.len() {
        16 => true,
        32 => false,
        _ => return None,
    };
    let number = parse_hex(text, true).filter(|number| *number != 0)?;
    Some(TraceId { number, is_short })
}

fn span_id(text: &[u8]) -> Option<u64> {
    (text.len() == 16).then(|| parse_hex(text, true)).flatten().map(|id| id as u64)
}

/// `TRACE-SPAN-SAMPLED-PARENT`, of which the last two may be missing, or the decision alone.
fn parse_single(text: &[u8]) -> Result<Told, Broken> {
    match text {
        b"0" => return Ok(Told { is_sampled: Some(false), ..Told::default() }),
        b"1" => return Ok(Told { is_sampled: Some(true), ..Told::default() }),
        b"d" => return Ok(Told { is_sampled: Some(true), is_debug: true, ..Told::default() }),
        _ => {}
    }
    let mut parts = text.splitn(4, |byte| *byte == b'-');
    let (Some(trace), Some(span)) = (parts.next(), parts.next()) else { return Err(Broken) };
    let is_debug = |sampled: &[u8]| sampled == b"d";
    let sampled = parts.next();
    let is_debug = sampled.is_some_and(is_debug);
    let is_sampled = if is_debug { Some(true) } else { sampled.and_then(decision) };
    let parent = parts.next().map(|id| span_id(id).ok_or(())).transpose();
    let caller = match (trace_id(trace), span_id(span), parent) {
        (Some(trace), Some(span), Ok(_)) => Some(Caller { trace, span: Some(span), is_sampled }),
        _ => None,
    };
    Ok(Told { caller, is_sampled, is_debug })
}

#[cfg(test)]
mod tests {
    use super::{Broken, parse_single};

    #[test]
    fn a_single_field_has_two_to_four_parts_or_a_decision() {
        let told = |text: &str| {
            let told = parse_single(text.as_bytes())?;
            Ok((told.caller.map(|caller| caller.trace.is_short), told.is_sampled, told.is_debug))
        };
        const LONG: &str = "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1";
        for (text, expected) in [
            ("0".to_owned(), Ok((None, Some(false), false))),
            ("1".to_owned(), Ok((None, Some(true), false))),
            ("d".to_owned(), Ok((None, Some(true), true))),
            (LONG.to_owned(), Ok((Some(false), None, false))),
            (format!("{LONG}-1"), Ok((Some(false), Some(true), false))),
            (format!("{LONG}-0-05e3ac9a4f6e3b90"), Ok((Some(false), Some(false), false))),
            (format!("{LONG}-d"), Ok((Some(false), Some(true), true))),
            (format!("{LONG}-1-05e3"), Ok((None, Some(true), false))),
            ("64fe8b2a57d3eff7-e457b5a2e4d86bd1".to_owned(), Ok((Some(true), None, false))),
            ("64fe8b2a57d3eff-e457b5a2e4d86bd1".to_owned(), Ok((None, None, false))),
            ("64fe8b2a57d3eff7".to_owned(), Err(Broken)),
            (String::new(), Err(Broken)),
        ] {
            assert_eq!(told(&text), expected, "{text}");
        }
    }
}
