//! The context of a trace in the fields of W3C's Trace Context.

use weir_plugin::Request;
use weir_wire::name::FieldName;

use super::{Caller, TraceContext, TraceId, parse_hex, push_span};

/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;

/// The names of the fields.
#[derive(Debug)]
pub(crate) struct Fields {
    parent: FieldName,
    state: FieldName,
}

impl Default for Fields {
    fn default() -> Self {
        Self { parent: FieldName::constant("traceparent"), state: FieldName::constant("tracestate") }
    }
}

impl Fields {
    /// The caller's place in a trace. `None` when the request tells none, or one that is broken.
    pub(crate) fn read(&self, request: &Request) -> Option<Caller> {
        let mut all = request.head.fields.all(request.buffer.bytes(), &self.parent);
        let first = all.next()?;
        // A repeated field is not understood (section 3.2 of the specification).
        if all.next().is_some() { None } else { parse(first) }
    }

    /// The state that vendors have added.
    pub(crate) fn state<'r>(&self, request: &'r Request) -> Option<&'r [u8]> {
        request.field(&self.state)
    }

    /// Tells the upstream the place of the request. The state of a trace that does not go on is dropped.
    pub(crate) fn write(&self, context: &TraceContext, goes_on: bool, request: &mut Request, scratch: &mut Vec<u8>) {
        scratch.clear();
        push_traceparent(context, scratch);
        request.set_field(&self.parent, scratch);
        if !goes_on {
            request.remove_field(&self.state);
        }
    }
}

/// Appends a `traceparent`.
pub(crate) fn push_traceparent(context: &TraceContext, out: &mut Vec<u8>) {
    out.extend_from_slice(b"00-");
    TraceId { is_short: false, ..context.trace }.write(out);
    out.push(b'-');
    push_span(context.span, out);
    out.extend_from_slice(if context.is_sampled { b"-01" } else { b"-00" });
}

fn parse(text: &[u8]) -> Option<Caller> {
    let known = text.get(..LENGTH)?;
    let mut parts = known.split(|byte| *byte == b'-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let has_lengths = [version.len(), trace.len(), span.len(), flags.len()] == [2, 32, 16, 2];
    if !has_lengths || parts.next().is_some() || version == b"ff" {
        return None;
    }
    let version = parse_hex(version, false)?;
    // Later versions may add parts behind a dash.
    match text.get(LENGTH) {
        None => {}
        Some(b'-') if version > 0 => {}
        Some(_) => return None,
    }
    let number = parse_hex(trace, false).filter(|number| *number != 0)?;
    let span = parse_hex(span, false).filter(|id| *id != 0)? as u64;
    let flags = parse_hex(flags, false)?;
    let trace = TraceId { number, is_short: false };
    Some(Caller { trace, span: Some(span), is_sampled: Some(flags & 1 == 1) })
}

#[cfg(test)]
mod tests {
    use super::{parse, push_traceparent};
    use crate::observe::trace::{TraceContext, TraceId};

    #[test]
    fn what_the_specification_allows_is_read_and_nothing_else() {
        const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let good = parse(GOOD.as_bytes()).expect("a caller");
        assert_eq!((good.span, good.is_sampled), (Some(0xb7ad_6b71_6920_3331), Some(true)));
        let context = TraceContext { trace: good.trace, span: 1, parent: good.span, is_sampled: true };
        let mut out = Vec::new();
        push_traceparent(&context, &mut out);
        assert_eq!(out, b"00-0af7651916cd43dd8448eb211c80319c-0000000000000001-01");
        assert_eq!(good.trace, TraceId { number: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, is_short: false });
        let is_sampled = |text: &str| parse(text.as_bytes()).map(|caller| caller.is_sampled == Some(true));
        for (text, sampled) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", Some(false)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", Some(true)),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0", None),
            ("00-0af7651916cd43dd8448eb211c80319cb7ad6b7169203331--01-", None),
            ("", None),
        ] {
            assert_eq!(is_sampled(text), sampled, "{text}");
        }
    }
}
