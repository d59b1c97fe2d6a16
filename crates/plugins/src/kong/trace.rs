//! The place of a request in a trace, in the formats that Kong's tracing plugins read and write.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Invalid, Request, RequestCx};
use weir_wire::name::FieldName;

use crate::observe::trace::sampler::Share;
use crate::observe::trace::{Caller, TraceContext, TraceId, b3, random_span, w3c};

/// Format of the fields that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum HeaderType {
    /// The caller's, or the default one.
    Preserve,
    /// The default one; the caller's fields are not read.
    Ignore,
    B3,
    #[serde(rename = "b3-single")]
    B3Single,
    W3c,
    Jaeger,
    Ot,
    Aws,
    Datadog,
    Gcp,
}

/// Format of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    B3,
    B3Single,
    W3c,
}

impl HeaderType {
    /// The format, where the type is one.
    fn format(self, field: &str) -> Result<Option<Format>, Invalid> {
        match self {
            Self::Preserve | Self::Ignore => Ok(None),
            Self::B3 => Ok(Some(Format::B3)),
            Self::B3Single => Ok(Some(Format::B3Single)),
            Self::W3c => Ok(Some(Format::W3c)),
            Self::Jaeger | Self::Ot | Self::Aws | Self::Datadog | Self::Gcp => {
                Err(Invalid::new(field, "not supported: expected preserve, ignore, b3, b3-single or w3c"))
            }
        }
    }
}

/// Reader and writer of the fields.
#[derive(Debug)]
pub(super) struct Propagation {
    reads: bool,
    /// Format that is written beside the caller's; `None`: the caller's alone.
    always: Option<Format>,
    default: Format,
    b3: b3::Fields,
    w3c: w3c::Fields,
}

/// Contents of a request's fields.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    caller: Option<Caller>,
    is_sampled: Option<bool>,
    is_debug: bool,
    format: Option<Format>,
}

impl Propagation {
    /// `default` is written where the request tells nothing.
    pub(super) fn new(kind: HeaderType, (field, default): (&str, HeaderType)) -> Result<Self, Invalid> {
        let default = default.format(field)?.ok_or_else(|| Invalid::new(field, "expected b3, b3-single or w3c"))?;
        let always = kind.format("header_type")?;
        Ok(Self {
            reads: kind != HeaderType::Ignore,
            always,
            default,
            b3: b3::Fields::default(),
            w3c: w3c::Fields::default(),
        })
    }

    /// Reads the caller's place in a trace: that of B3 first, then that of W3C. Fields that cannot be read count as absent.
    pub(super) fn read(&self, request: &Request) -> Told {
        if !self.reads {
            return Told::default();
        }
        let told = self.b3.read(request).unwrap_or_default();
        if told.caller.is_some() || told.is_sampled.is_some() || told.is_debug {
            let format = if self.b3.is_single(request) { Format::B3Single } else { Format::B3 };
            let is_debug = told.is_debug;
            return Told { caller: told.caller, is_sampled: told.is_sampled, is_debug, format: Some(format) };
        }
        let caller = self.w3c.read(request);
        let is_sampled = caller.and_then(|caller| caller.is_sampled);
        Told { caller, is_sampled, is_debug: false, format: caller.map(|_| Format::W3c) }
    }

    /// The place of the gateway in the trace: the caller's decision counts, else the share.
    pub(super) fn place(told: Told, share: Share, is_short: bool) -> TraceContext {
        let fresh = || {
            let id = TraceId::random();
            // The lower half of a random number of 128 bits may be 0 once in 2^64 times.
            let number = if is_short { (id.number as u64).max(1).into() } else { id.number };
            TraceId { number, is_short }
        };
        let trace = told.caller.map_or_else(fresh, |caller| caller.trace);
        let is_sampled = match told.is_sampled {
            Some(decision) => decision,
            None => told.is_debug || share.has(TraceId::random()),
        };
        let parent = told.caller.and_then(|caller| caller.span);
        TraceContext { trace, span: random_span(), parent, is_sampled }
    }

    /// Tells the upstream its place.
    pub(super) fn write(&self, told: Told, context: &TraceContext, cx: &mut RequestCx<'_>) {
        let mut scratch = cx.take_scratch();
        let first = told.format.or(self.always).unwrap_or(self.default);
        let second = self.always.filter(|format| *format != first);
        for format in [Some(first), second].into_iter().flatten() {
            match format {
                Format::B3 => self.b3.write(context, cx.request_mut(), &mut scratch),
                Format::B3Single => self.b3.write_single(context, cx.request_mut(), &mut scratch),
                Format::W3c => self.w3c.write(context, told.caller.is_some(), cx.request_mut(), &mut scratch),
            }
        }
        if told.is_debug {
            self.b3.write_debug(cx.request_mut());
        }
        cx.put_scratch(scratch);
    }
}

/// Checks the name of the field that tells clients the id of the trace.
pub(super) fn response_field(name: Option<&str>) -> Result<Option<FieldName>, Invalid> {
    let read = |name| {
        FieldName::new(name)
            .ok_or_else(|| Invalid::new("http_response_header_for_traceid", "expected the name of a header"))
    };
    name.filter(|name| !name.is_empty()).map(read).transpose()
}
