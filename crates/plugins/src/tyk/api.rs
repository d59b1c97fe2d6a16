//! `api`: who may call an API: versions, lists of paths, addresses, keys, their rights and limits.

mod access;
mod credentials;
mod jwt;
mod limits;
mod lists;
mod version;

use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Origin, PerRequest, Phases, Plugin, RequestCx,
    ResponseCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::shared::{self, Known, ListenPath};
use crate::security::address_set::AddressSet;
use access::Access;
use lists::Verdict;
use version::Versions;

/// The definition.
#[derive(Debug)]
pub(crate) struct Api;

/// On the route of an API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the API.
    api_id: String,
    /// Its name, told in the realm of basic authentication.
    name: String,
    /// Its organisation.
    org_id: String,
    /// The listen path.
    listen_path: String,
    /// Seconds since 1970 at which the API ends; 0: never.
    expires: i64,
    /// The versions; the first of an API without versions holds for all requests.
    versions: version::Conf,
    /// Addresses that are allowed; none allows all.
    allowed_ips: Vec<AddrRange>,
    /// Addresses that are refused.
    blacklisted_ips: Vec<AddrRange>,
    /// Authentication, rights and limits of keys; none for an API without keys.
    access: Option<access::Conf>,
    /// The limit of the whole API.
    global_rate_limit: Option<limits::Rate>,
    /// Tells `X-RateLimit-*` of rates and not of quotas.
    tells_rates: bool,
}

impl Define for Api {
    const NAME: &'static str = "api";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE);
    const DOC: &'static str = "Who may call an API.";
    const EXAMPLE: &'static str = "{api_id: a, listen_path: /a/, versions: {list: [{name: Default}]}}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let listen = ListenPath::compile(&conf.listen_path).map_err(|error| Invalid::new("listen_path", error));
        let (listen, versions) = (cx.ok(listen), cx.ok(Versions::compile(conf.versions)));
        let access = conf.access.map(|access| cx.ok(Access::compile(access, &conf.api_id, &conf.org_id, &conf.name)));
        let (listen, versions) = (listen?, versions?);
        let access = match access {
            Some(access) => Some(access?),
            None => None,
        };
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            Ok(Guard {
                place: shared::place(build, &conf.api_id),
                limits: limits::Counters::new(build, &conf.api_id, conf.global_rate_limit),
                access: access.map(|access| access.build(build)).transpose()?,
                listen,
                versions,
                expires: conf.expires,
                allowed: (!conf.allowed_ips.is_empty()).then(|| AddressSet::new(&conf.allowed_ips)),
                refused: AddressSet::new(&conf.blacklisted_ips),
                tells_rates: conf.tells_rates,
                told: [name("X-Ratelimit-Limit"), name("X-Ratelimit-Remaining"), name("X-Ratelimit-Reset")],
                api_expires: name("X-Tyk-Api-Expires"),
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Guard {
    place: Arc<PerRequest<Known>>,
    listen: ListenPath,
    versions: Versions,
    expires: i64,
    allowed: Option<AddressSet>,
    refused: AddressSet,
    access: Option<Access>,
    limits: limits::Counters,
    tells_rates: bool,
    told: [FieldName; 3],
    api_expires: FieldName,
}

/// Refusal of a request: status and text.
type Refusal = (u16, &'static str);

impl Plugin for Guard {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        let mut known = Known::default();
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let flow = self.check(cx, &mut rest, &mut known);
        cx.put_scratch(rest);
        self.place.put(cx, known);
        flow
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            if let Some(access) = &self.access {
                access.fetch(cx.now_ms(), io).await;
            }
            match self.rewrite(cx) {
                // There are no keys.
                Flow::Suspend => body::error(cx, 403, "Key not authorized", &[]),
                flow => flow,
            }
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(known) = self.place.get(cx) else { return Flow::Continue };
        let (told, version) = (known.told, known.version);
        if known.is_mocked {
            return Flow::Continue;
        }
        if cx.response().origin == Origin::Upstream || self.tells_rates && matches!(cx.status(), 403 | 429) {
            let mut text = cx.take_scratch();
            for (field, number) in self.told.iter().zip(told) {
                text.clear();
                limits::push_signed(&mut text, number);
                cx.set_field(field, &text);
            }
            cx.put_scratch(text);
        }
        if let Some(date) = self.versions.date(version) {
            cx.set_field(&self.api_expires, date);
        }
        Flow::Continue
    }
}

impl Guard {
    /// The whole chain up to the limits. `room` begins with the path behind the listen path, and is scratch memory behind it.
    fn check(&self, cx: &mut RequestCx<'_>, room: &mut Vec<u8>, known: &mut Known) -> Flow {
        let now = (cx.unix_ms() / 1000) as i64;
        if self.expires > 0 && now >= self.expires {
            let text = "API has expired, please check documentation or contact administrator";
            return body::error(cx, 403, text, &[]);
        }
        let (version, skip) = match self.versions.of(cx.request(), room, now) {
            Ok(found) => found,
            Err((status, text)) => return body::error(cx, status, text, &[]),
        };
        (known.version, known.skipped) = (version, skip);
        let path = skip.min(room.len())..room.len();
        let rest = room.get(path.clone()).unwrap_or_default();
        let Some(lists) = self.versions.lists(version) else {
            return body::error(cx, 403, "Version information not found", &[]);
        };
        match lists.verdict(cx.request().method_bytes(), rest) {
            Verdict::Passes => {}
            Verdict::Ignored => known.is_ignored = true,
            Verdict::Forbidden => return body::error(cx, 403, "Requested endpoint is forbidden", &[]),
            Verdict::Replies(reply) => {
                known.is_mocked = true;
                return reply.answer(cx);
            }
        }
        let address = cx.client().addr;
        if self.refused.contains(address) || self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(address)) {
            return body::error(cx, 403, "access from this IP has been disallowed", &[]);
        }
        if let Err((status, text)) = lists.check_size(cx.request(), rest) {
            return body::error(cx, status, text, &[]);
        }
        let rate = lists.rate(cx.request().method_bytes(), rest);
        if !known.is_ignored {
            if let Err(flow) = self.admit(cx, room, path, now, known) {
                return flow;
            }
            let of_path = rate.map_or(Ok(()), |rate| self.limits.of_path(cx, room, rate));
            let tells = self.tells_rates && self.access.is_none();
            if let Err((status, text)) = of_path.and_then(|()| self.limits.of_api(cx, room, tells, known)) {
                return body::error(cx, status, text, &[]);
            }
        }
        if let Some(key) = self.versions.stripped_field() {
            cx.request_mut().remove_field(key);
        }
        if let Some(key) = self.versions.stripped_argument() {
            cx.request_mut().retain_arguments(|argument| !crate::query::has_name(argument, key));
        }
        Flow::Continue
    }

    /// Finds the caller, and checks rights and limits.
    fn admit(
        &self,
        cx: &mut RequestCx<'_>,
        room: &mut Vec<u8>,
        path: Range<usize>,
        now: i64,
        known: &mut Known,
    ) -> Result<(), Flow> {
        let Some(access) = &self.access else { return Ok(()) };
        access.authenticate(cx, room, known)?;
        let rest = room.get(path.clone()).unwrap_or_default();
        let checked = access.authorise(cx.request(), rest, self.versions.name(known.version), now, known);
        let limited = checked.and_then(|()| access.limit(cx, room, path, (&self.limits, self.tells_rates), known));
        limited.map_err(|(status, text)| body::error(cx, status, text, &[]))
    }
}
