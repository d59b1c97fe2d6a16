//! Kong's `request-size-limiting`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Phases, Plugin, RequestCx};
use weir_wire::head::Content;

use super::body;

/// The definition.
#[derive(Debug)]
pub(crate) struct RequestSizeLimiting;

/// Unit of a size.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Megabytes,
    Kilobytes,
    Bytes,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The largest body.
    #[schemars(range(min = 0))]
    allowed_payload_size: u64,
    /// Its unit, of which the larger ones are multiples of 1024.
    size_unit: Unit,
    /// Requires a `Content-Length`, unless the body comes in chunks.
    require_content_length: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self { allowed_payload_size: 128, size_unit: Unit::Megabytes, require_content_length: false }
    }
}

impl Define for RequestSizeLimiting {
    const NAME: &'static str = "request-size-limiting";
    const PRIORITY: i32 = 951;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Refuses requests with large bodies.";
    const EXAMPLE: &'static str = "allowed_payload_size: 10\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, _: &CompileCx<'_>) -> Option<Compiled> {
        let unit = match conf.size_unit {
            Unit::Megabytes => 1 << 20,
            Unit::Kilobytes => 1 << 10,
            Unit::Bytes => 1,
        };
        Some(Compiled::ready(Limited {
            bytes: conf.allowed_payload_size.saturating_mul(unit),
            needs_length: conf.require_content_length,
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Limited {
    bytes: u64,
    needs_length: bool,
}

impl Plugin for Limited {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.request().head.content {
            Content::Length(length) if length > self.bytes => {
                let status = if cx.request().head.expect_continue { 417 } else { 413 };
                body::error(cx, status, "Request size limit exceeded", &[])
            }
            Content::None if self.needs_length && cx.request().field_str("content-length").is_none() => {
                body::error(cx, 411, "A valid Content-Length header is required", &[])
            }
            // A body in chunks is counted on its way.
            Content::Unknown => cx.limit_body(self.bytes),
            _ => Flow::Continue,
        }
    }
}
