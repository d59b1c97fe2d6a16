//! Kong's `redirect`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestCx};
use weir_wire::is_field_byte;

/// The definition.
#[derive(Debug)]
pub(crate) struct Redirect;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Target of clients: a whole URL.
    #[schemars(length(min = 1))]
    location: String,
    /// Status of the answer.
    #[serde(default = "moved")]
    #[schemars(range(min = 100, max = 599))]
    status_code: u16,
    /// Puts path and query of the request in the place of those of `location`.
    #[serde(default)]
    keep_incoming_path: bool,
}

const fn moved() -> u16 {
    301
}

impl Define for Redirect {
    const NAME: &'static str = "redirect";
    const PRIORITY: i32 = 779;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Sends clients elsewhere.";
    const EXAMPLE: &'static str = "location: https://example.com\nkeep_incoming_path: true\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        // An interim status would leave the client waiting for a final one.
        if conf.status_code < 200 {
            cx.say([Invalid::new("status_code", "statuses below 200 are not final and not supported")]);
        }
        let mut location = conf.location;
        let authority = location.split_once("://").map(|(scheme, rest)| (scheme.len() + 3, rest));
        let is_url = authority.is_some_and(|(_, rest)| !rest.is_empty() && !rest.starts_with(['/', '?', '#']));
        if !is_url || !location.bytes().all(|b| is_field_byte(b) && b != b' ') {
            cx.say([Invalid::new("location", "expected a URL such as https://example.com/path")]);
            return None;
        }
        if conf.keep_incoming_path {
            let start = authority.map_or(0, |(start, _)| start);
            let end = location.get(start..).and_then(|rest| rest.find(['/', '?', '#']));
            location.truncate(end.map_or(location.len(), |end| start + end));
        }
        Some(Compiled::ready(Moved {
            status: conf.status_code,
            location: location.into_bytes(),
            keeps_path: conf.keep_incoming_path,
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Moved {
    status: u16,
    /// With `keeps_path` scheme and authority alone.
    location: Vec<u8>,
    keeps_path: bool,
}

impl Plugin for Moved {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut location = cx.take_scratch();
        location.extend_from_slice(&self.location);
        if self.keeps_path {
            cx.request().write_request_uri(&mut location);
        }
        let flow = cx.reply(self.status).field("Location", &location).body(b"redirecting").done();
        cx.put_scratch(location);
        flow
    }
}
