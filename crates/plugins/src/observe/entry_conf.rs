//! The part of a logger's configuration that says what its entries hold.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::{Diagnostic, Node, Vars};
use weir_plugin::{BuildCx, CompileCx, Invalid, PerRequest};

use super::body::{Capture, Wanted};
use super::entry::{Entry, Fields, Format};

/// Format and bodies of entries. Conditions of bodies are not among it: what is wrong in one would be reported without its
/// place.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EntryConf {
    /// The entry: names with texts in which variables such as `$host` are replaced, or objects of such names. A name whose
    /// variable is not set is left out; `route_id` and `service_id` are added. Without it, and without one in
    /// `plugin_metadata`, the entry is APISIX's.
    log_format: Option<Format>,
    /// Names that are laid over APISIX's entry.
    log_format_extra: Option<Format>,
    /// Puts the body of the request into the entry: one whose length is announced where that is at most
    /// `max_req_body_bytes`, for which it is held whole; of one in chunks so many bytes of what goes to the upstream.
    #[serde(default)]
    include_req_body: bool,
    /// Puts the body of the response into the entry, up to `max_resp_body_bytes`.
    #[serde(default)]
    include_resp_body: bool,
    /// Bytes of a request's body.
    #[serde(default = "half_a_mebibyte")]
    #[schemars(range(min = 1))]
    max_req_body_bytes: usize,
    /// Bytes of a response's body.
    #[serde(default = "half_a_mebibyte")]
    #[schemars(range(min = 1))]
    max_resp_body_bytes: usize,
}

/// Formats of a logger whose entries have no bodies.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OwnFormats {
    /// The entry: names with texts in which variables such as `$host` are replaced, or objects of such names. A name whose
    /// variable is not set is left out; `route_id` and `service_id` are added. Without it, and without one in
    /// `plugin_metadata`, the entry is APISIX's.
    log_format: Option<Format>,
    /// Names that are added to APISIX's entry.
    log_format_extra: Option<Format>,
}

impl From<OwnFormats> for EntryConf {
    fn from(OwnFormats { log_format, log_format_extra }: OwnFormats) -> Self {
        let (most, include) = (half_a_mebibyte(), false);
        Self {
            log_format,
            log_format_extra,
            include_req_body: include,
            include_resp_body: include,
            max_req_body_bytes: most,
            max_resp_body_bytes: most,
        }
    }
}

/// Formats in the `plugin_metadata` of a logger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct FormatConf {
    /// The entry where the plugin's own configuration has none.
    log_format: Format,
    /// Names that are laid over APISIX's entry where the plugin's own configuration has none.
    log_format_extra: Format,
}

fn half_a_mebibyte() -> usize {
    512 << 10
}

impl EntryConf {
    /// The formats of this configuration.
    pub(crate) fn formats(&self, cx: &CompileCx<'_>) -> Option<Formats> {
        let own = |place, format: &Option<Format>| {
            let compiled = format.as_ref().map(|format| Fields::new(place, format));
            cx.ok(compiled.transpose())
        };
        let (format, extra) = (own("log_format", &self.log_format), own("log_format_extra", &self.log_format_extra));
        Some(Formats { format: format?, extra: extra? })
    }

    /// The bodies that stand in entries: of requests and of responses of which these hold.
    pub(crate) fn capture(self, request: Option<Vars>, response: Option<Vars>) -> Capture {
        let wanted = |include: bool, most, when: Option<Vars>| {
            include.then(|| Wanted { most, when: when.map(|when| when.expr().clone()), kept: PerRequest::new() })
        };
        Capture {
            request: wanted(self.include_req_body, self.max_req_body_bytes, request),
            response: wanted(self.include_resp_body, self.max_resp_body_bytes, response),
        }
    }
}

/// The formats of a configuration; those of the metadata take the place of one that it has not.
#[derive(Debug)]
pub(crate) struct Formats {
    format: Option<Fields>,
    extra: Option<Fields>,
}

impl Formats {
    /// Entries in these formats.
    pub(crate) fn entry(self, of_all: &FormatConf, cx: &BuildCx<'_>) -> Result<Entry, Invalid> {
        let or = |own: Option<Fields>, place, format| own.map_or_else(|| Fields::new(place, format), Ok);
        let format = or(self.format, "log_format", &of_all.log_format)?;
        let extra = or(self.extra, "log_format_extra", &of_all.log_format_extra)?;
        let version = cx.product.rsplit('/').next().unwrap_or_default();
        Ok(Entry::new((!format.is_empty()).then_some(format), extra, version))
    }
}

impl FormatConf {
    /// Findings in the formats of this metadata.
    pub(crate) fn check(&self, metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        let formats = [("log_format", &self.log_format), ("log_format_extra", &self.log_format_extra)];
        let faults = formats.into_iter().filter_map(|(place, format)| {
            let fault = Fields::new(place, format).err()?;
            Some(Diagnostic::error(metadata.mark_of(place), fault.path, *fault.code))
        });
        let faults: Vec<_> = faults.collect();
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }
}
