//! `api`: who may call an API: versions, lists of paths, addresses, keys, their rights and limits.

mod access;
mod clients;
mod credentials;
mod hmac;
mod jwt;
mod limits;
mod lists;
mod openid;
mod organisation;
mod signature;
mod version;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::AddrRange;
use weir_plugin::{
    CompileCx, Compiled, Define, Failure, Flow, Invalid, Io, LocalFuture, Origin, PerRequest, Phases, Plugin,
    RequestCx, ResponseCx,
};
use weir_wire::name::FieldName;

use super::body;
use super::events::{self, Event, Events, monitor};
use super::loops::{self, Loops};
use super::shared::{self, Known, ListenPath, Progress, Wait, name_of};
use crate::security::address_set::AddressSet;
use access::Access;
use clients::Clients;
pub use credentials::message_ids;
use jwt::Stop;
use lists::Verdict;
use monitor::Monitor;
use organisation::Organisation;
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
    /// Certificates that clients have to show in TLS; none: they need none.
    client_certificates: Option<clients::Conf>,
    /// Limits of the organisation; none: they are not looked at.
    organisation: Option<organisation::Conf>,
    /// Authentication, rights and limits of keys; none for an API without keys.
    access: Option<access::Conf>,
    /// The limit of the whole API.
    global_rate_limit: Option<limits::Rate>,
    /// Tells `X-RateLimit-*` of rates and not of quotas.
    tells_rates: bool,
    /// Handlers of events.
    events: events::Conf,
    /// Triggers of quotas; none: nobody is told.
    monitor: Option<monitor::Conf>,
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
        let clients = conf.client_certificates.map(|clients| cx.ok(Clients::compile(clients)));
        let clients = match clients {
            Some(clients) => Some(clients?),
            None => None,
        };
        let events = Events::compile(conf.events, cx);
        let monitor = match conf.monitor.map(monitor::Compiled::new) {
            Some(monitor) => Some(cx.ok(monitor)?),
            None => None,
        };
        let (listen, versions, events) = (listen?, versions?, events?);
        let access = match access {
            Some(access) => Some(access?),
            None => None,
        };
        let name = FieldName::constant;
        let organisation = conf.organisation.filter(|_| !conf.org_id.is_empty());
        let conf_org = conf.org_id;
        Some(Compiled::build(move |build| {
            Ok(Guard {
                place: shared::place(build, &conf.api_id),
                loops: loops::place(build),
                limits: limits::Counters::new(build, &conf.api_id, conf.global_rate_limit),
                clients,
                access: access.map(|access| access.build(build)).transpose()?,
                organisation: organisation.map(|conf| Organisation::build(&conf, &conf_org, build)).transpose()?,
                listen,
                versions,
                expires: conf.expires,
                allowed: (!conf.allowed_ips.is_empty()).then(|| AddressSet::new(&conf.allowed_ips)),
                refused: AddressSet::new(&conf.blacklisted_ips),
                tells_rates: conf.tells_rates,
                events: events.build(build)?,
                monitor: monitor.map(|monitor| monitor.build(build)),
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
    loops: Arc<PerRequest<Loops>>,
    listen: ListenPath,
    versions: Versions,
    expires: i64,
    allowed: Option<AddressSet>,
    refused: AddressSet,
    clients: Option<Clients>,
    access: Option<Access>,
    organisation: Option<Organisation>,
    limits: limits::Counters,
    tells_rates: bool,
    events: Events,
    monitor: Option<Arc<Monitor>>,
    told: [FieldName; 3],
    api_expires: FieldName,
}

fn waits_for_nothing() -> Flow {
    Flow::Abort(Failure::internal("a request waits for nothing"))
}

/// Refusal of a request: status and text.
type Refusal = (u16, &'static str);

impl Plugin for Guard {
    fn rewrite(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.body().is_none() && self.access.as_ref().is_some_and(Access::needs_body) {
            return Flow::AwaitBody;
        }
        self.pass(cx, Progress::default())
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let mut has_keys = false;
            loop {
                let known = self.place.get_mut(cx).map(|known| std::mem::take(&mut known.progress));
                let Some(mut progress) = known else { return waits_for_nothing() };
                match (progress.wait.take(), &self.organisation) {
                    (Some(Wait::Organisation), Some(organisation)) => {
                        organisation.read(cx.now_ms(), &mut progress).await;
                    }
                    (Some(Wait::OrganisationQuota(renewal)), Some(organisation)) => {
                        organisation.count(renewal, &mut progress).await;
                    }
                    (wait, _) => progress.wait = wait,
                }
                let Some(access) = &self.access else {
                    if progress.wait.is_some() {
                        return waits_for_nothing();
                    }
                    match self.pass(cx, progress) {
                        Flow::Suspend => continue,
                        flow => return flow,
                    }
                };
                match progress.wait.take() {
                    // There are no keys.
                    Some(Wait::Keys) if has_keys => return body::error(cx, 403, "Key not authorized", &[]),
                    Some(Wait::Keys) => {
                        access.fetch(cx.now_ms(), io).await;
                        has_keys = true;
                    }
                    Some(Wait::Verify(token)) => {
                        progress.is_verified = Some(access.verifies(&token, cx.now_ms(), io).await);
                    }
                    Some(Wait::Custom) => {
                        if let Err((flow, is_refusal)) = access.ask(cx, io, &self.place, &mut progress).await {
                            if is_refusal {
                                self.events.tell(Event::AuthFailure, cx, "");
                            }
                            return flow;
                        }
                    }
                    Some(Wait::Throttle(ms)) => weir_runtime::sleep(Duration::from_millis(ms)).await,
                    Some(Wait::Sessions(names)) => access.read(names, cx.now_ms(), &mut progress).await,
                    Some(Wait::Record(name)) => access.look(name, cx.now_ms(), &mut progress).await,
                    Some(Wait::Quota(name, renewal)) => access.count(&name, renewal, &mut progress).await,
                    // The organisation's.
                    None => {}
                    Some(Wait::Organisation | Wait::OrganisationQuota(_)) => return waits_for_nothing(),
                }
                match self.pass(cx, progress) {
                    Flow::Suspend => {}
                    flow => return flow,
                }
            }
        })
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let Some(known) = self.place.get(cx) else { return Flow::Continue };
        let (told, version) = (known.told, known.version);
        if known.is_mocked {
            return Flow::Continue;
        }
        let is_proxied = cx.response().origin == Origin::Upstream || known.is_cached;
        if is_proxied || self.tells_rates && matches!(cx.status(), 403 | 429) {
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
    /// Goes through the chain, with what is known from earlier passes.
    fn pass(&self, cx: &mut RequestCx<'_>, progress: Progress) -> Flow {
        let loops = self.loops.get(cx).copied().unwrap_or_default();
        let method = cx.request().upstream.method;
        let mut known = Known { progress, method, ..Known::default() };
        if let Some(before) = self.place.get_mut(cx) {
            known.url = before.url.take();
            if loops.is_self() {
                // The caller is known already.
                (known.session, known.identity) = (before.session.take(), before.identity.take());
                known.told = before.told;
            }
        }
        let mut rest = cx.take_scratch();
        self.listen.write_rest(cx.request(), &mut rest);
        let flow = self.check(cx, &mut rest, &mut known, loops);
        cx.put_scratch(rest);
        self.place.put(cx, known);
        flow
    }

    /// The whole chain up to the limits. `room` begins with the path behind the listen path, and is scratch memory behind it.
    fn check(&self, cx: &mut RequestCx<'_>, room: &mut Vec<u8>, known: &mut Known, loops: Loops) -> Flow {
        let now = (cx.unix_ms() / 1000) as i64;
        if self.expires > 0 && now >= self.expires {
            let text = "API has expired, please check documentation or contact administrator";
            return body::error(cx, 403, text, &[]);
        }
        let (version, skip) = match self.versions.of(cx.request(), room, now) {
            Ok(found) => found,
            Err((status, text)) => {
                self.events.tell(Event::VersionFailure, cx, "");
                return body::error(cx, status, text, &[]);
            }
        };
        (known.version, known.skipped) = (version, skip);
        let path = skip.min(room.len())..room.len();
        let rest = room.get(path.clone()).unwrap_or_default();
        let Some(lists) = self.versions.lists(version) else {
            return body::error(cx, 403, "Version information not found", &[]);
        };
        let method = name_of(known.method, cx.request());
        match lists.verdict(method, rest, loops.is_looping()) {
            Verdict::Passes => {}
            Verdict::Ignored => known.is_ignored = true,
            Verdict::Forbidden => {
                self.events.tell(Event::VersionFailure, cx, "");
                return body::error(cx, 403, "Requested endpoint is forbidden", &[]);
            }
            Verdict::Replies(reply) => {
                known.is_mocked = true;
                return reply.answer(cx);
            }
        }
        let address = cx.client().addr;
        if self.refused.contains(address) || self.allowed.as_ref().is_some_and(|allowed| !allowed.contains(address)) {
            return body::error(cx, 403, "access from this IP has been disallowed", &[]);
        }
        if let Some(clients) = self.clients.as_ref().filter(|_| !known.is_ignored)
            && let Err(flow) = clients.check(cx)
        {
            return flow;
        }
        let size = lists.check_size(cx.request(), rest);
        let rate = lists.rate(name_of(known.method, cx.request()), rest);
        if let Some(organisation) = self.organisation.as_ref().filter(|_| loops.checks_limits()) {
            let now = known.progress.unix_ms(cx);
            match organisation.check(cx.now_ms(), now, room, &self.limits, known) {
                Ok(()) => {}
                Err(Stop::Waits(wait)) => return known.wait_for(wait),
                Err(Stop::Refused((status, text))) => {
                    if let Some(event) = organisation::event(text) {
                        self.events.tell(event, cx, organisation.id());
                    }
                    return body::error(cx, status, text, &[]);
                }
            }
            if let (Some(monitor), Some((session, used))) = (&self.monitor, known.organisation_used.take()) {
                monitor.look_at_organisation(&session, used, (now, cx.now_ms()));
            }
        }
        if let Err((status, text)) = size {
            return body::error(cx, status, text, &[]);
        }
        if !known.is_ignored {
            if let Err(flow) = self.admit(cx, room, (path, now), known, loops) {
                return flow;
            }
            let now = known.progress.unix_ms(cx);
            let tells = self.tells_rates && self.access.is_none();
            if loops.checks_limits() {
                let of_path = rate.map_or(Ok(()), |rate| self.limits.of_path(now, room, rate));
                if let Err((status, text)) = of_path.and_then(|()| self.limits.of_api(now, room, tells, known)) {
                    return body::error(cx, status, text, &[]);
                }
            }
            if let Some(access) = &self.access {
                access.strip(cx);
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
        (path, now): (Range<usize>, i64),
        known: &mut Known,
        loops: Loops,
    ) -> Result<(), Flow> {
        let Some(access) = &self.access else { return Ok(()) };
        if !(loops.is_self() && known.session.is_some()) {
            access.authenticate(cx, room, known).inspect_err(|flow| {
                if *flow != Flow::Suspend {
                    self.events.tell(Event::AuthFailure, cx, "");
                }
            })?;
        }
        let rest = room.get(path.clone()).unwrap_or_default();
        let checked = access.authorise(cx.request(), rest, self.versions.name(known.version), now, known);
        let counters = (&self.limits, self.tells_rates);
        let limited = checked.map_err(Stop::from).and_then(|()| match loops.checks_limits() {
            true => access.limit(cx, room, path, counters, known),
            false => Ok(0),
        });
        if let (Ok(used), Some(monitor), Some(session)) = (&limited, &self.monitor, &known.session) {
            let now = (known.progress.unix_ms(cx), cx.now_ms());
            monitor.look_at_key(session, access.limits_of(session).0, *used, now);
        }
        limited.map(drop).map_err(|stop| match stop {
            Stop::Refused((status, text)) => {
                let event = match (status, text) {
                    (429, _) => Event::RateLimitExceeded,
                    (_, "Quota exceeded") => Event::QuotaExceeded,
                    (401, _) | (_, "Key is inactive, please renew") => Event::KeyExpired,
                    _ => Event::AuthFailure,
                };
                self.events.tell(event, cx, known.session.as_ref().map_or("", |session| &session.name));
                body::error(cx, status, text, &[])
            }
            Stop::Waits(wait) => known.wait_for(wait),
        })
    }
}
