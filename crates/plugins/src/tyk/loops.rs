//! Loops: requests that one API leads to another inside the gateway (`tyk://API/path`), or to itself (`tyk://self/path`).

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_plugin::{BuildCx, Flow, PerRequest, RequestCx};
use weir_wire::method::Method;
use weir_wire::query::{self, Argument};

use super::body;
use super::shared::text;

/// The scheme of a loop.
const SCHEME: &str = "tyk://";
/// The API itself, in the place of a name.
const SELF: &str = "self";
/// Loops of one request where the first of them does not say another number (`loop_limit`).
const LIMIT: u32 = 5;

/// Loops of a request so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loops {
    level: u32,
    /// Most loops; 0: nobody has said so.
    limit: u32,
    /// True if the last loop led back to its own API.
    is_self: bool,
    /// True if limits count after the last loop (`check_limits`).
    checks_limits: bool,
}

impl Loops {
    /// True once an API has led on by a rewrite, for which paths that are internal are open.
    pub(super) fn is_looping(self) -> bool {
        self.level > 0
    }

    /// True if limits hold for the request.
    pub(super) fn checks_limits(self) -> bool {
        self.level == 0 || self.checks_limits
    }

    /// True for a request that came back to the API which has let it through.
    pub(super) fn is_self(self) -> bool {
        self.is_self
    }
}

/// Ids of APIs by the names in the URLs of loops.
pub(super) type Ids = BTreeMap<String, String>;

/// The loops of requests, for all APIs.
pub(super) fn place(build: &BuildCx<'_>) -> Arc<PerRequest<Loops>> {
    build.states.get_or_create("tyk loops", PerRequest::new)
}

/// The place of an API for loops: a path that no client can ask for.
#[must_use]
pub fn loop_path(api: &str) -> String {
    format!("{SCHEME}{api}/")
}

/// Name and rest of the URL of a loop; `None` for another URL.
#[must_use]
pub fn parse(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix(SCHEME)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    rest.split_at_checked(end)
}

/// The API that a loop leads to.
#[derive(Debug)]
pub(super) struct Target {
    /// The place; `None`: there is no such API.
    place: Option<Box<str>>,
    is_self: bool,
}

impl Target {
    /// The target by this name.
    pub(super) fn new(name: &str, ids: &Ids) -> Self {
        Self { place: ids.get(name).map(|id| loop_path(id).into()), is_self: name == SELF }
    }

    /// Leads a request on, to path and query of a rewrite. Arguments of the query say how: `method`, `loop_limit`,
    /// `check_limits`.
    pub(super) fn follow(&self, cx: &mut RequestCx<'_>, loops: &PerRequest<Loops>, made: &[u8]) -> Flow {
        let mut state = loops.get(cx).copied().unwrap_or_default();
        let limit = if state.limit == 0 { LIMIT } else { state.limit };
        if state.level > limit {
            let message = format!("Loop level too deep. Found more than {limit} loops in single request");
            return body::error(cx, 500, &message, &[]);
        }
        let (path, written) = split(made);
        let Controls { query, method, limit, checks_limits } = Controls::of(written);
        if let Some(method) = method {
            cx.request_mut().upstream.method = Some(method);
        }
        if state.limit == 0 {
            state.limit = limit;
        }
        state.level += 1;
        (state.is_self, state.checks_limits) = (self.is_self, checks_limits);
        loops.put(cx, state);
        self.lead(cx, path, &query, "Can't detect loop target")
    }

    /// Leads a request on as to a target URL: path and query are those that an upstream would receive.
    pub(super) fn pass(&self, cx: &mut RequestCx<'_>, made: &[u8]) -> Flow {
        let (path, query) = split(made);
        self.lead(cx, path, query, "Couldn't detect target")
    }

    fn lead(&self, cx: &mut RequestCx<'_>, path: &[u8], query: &[u8], absent: &str) -> Flow {
        let path = if path.is_empty() { b"/" } else { path };
        let led = self.place.as_ref().and_then(|place| {
            let place = [place.as_bytes(), path.strip_prefix(b"/").unwrap_or(path)].concat();
            cx.reroute(&place, path, query)
        });
        led.unwrap_or_else(|| body::error(cx, 500, absent, &[]))
    }
}

/// Path and query.
fn split(target: &[u8]) -> (&[u8], &[u8]) {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    (target.get(..end).unwrap_or_default(), target.get(end + 1..).unwrap_or_default())
}

/// Arguments of a loop, and the others.
struct Controls {
    query: Vec<u8>,
    method: Option<Method>,
    limit: u32,
    checks_limits: bool,
}

impl Controls {
    fn of(written: &[u8]) -> Self {
        let mut decoded = Vec::new();
        query::decode(written, &mut decoded);
        let find = |name: &[u8]| match query::find(written, &decoded, name) {
            Some(Argument::Value(value)) => text(value),
            _ => String::new(),
        };
        let method = Some(Method::parse(find(b"method").as_bytes())).filter(|method| *method != Method::Other);
        let own: [&[u8]; 3] = [b"method", b"loop_limit", b"check_limits"];
        let others = written.split(|byte| *byte == b'&').filter(|one| !one.is_empty());
        let others = others.filter(|one| !own.iter().any(|name| query::has_name(one, name)));
        Self {
            query: others.collect::<Vec<_>>().join(&b'&'),
            method,
            limit: find(b"loop_limit").parse().unwrap_or(0),
            checks_limits: find(b"check_limits") == "true",
        }
    }
}
