//! Keys of an API: authentication, the rights of a session, and its limits.

use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BuildCx, Flow, Invalid, Io, PerRequest, Request, RequestCx};

use super::Refusal;
use super::credentials::{self, Messages, Way};
use super::jwt::Stop;
use super::limits::{Counters, Scope};
use crate::tyk::body;
use crate::tyk::coprocess::Verdict;
use crate::tyk::sessions::remote::{self, Remote, write_quota_key};
use crate::tyk::sessions::{Counted, HashFunction, Limits, Naming, Session, Sessions};
use crate::tyk::shared::{Known, Progress, ReadSession, Wait, name_of};

/// Authentication, rights and limits.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Ways of authentication in their order; all have to succeed.
    ways: Vec<credentials::Conf>,
    /// Number of the way that says who calls.
    identity: usize,
    /// Takes the credentials out of requests.
    strip_auth_data: bool,
    /// True if keys are stored by their hashes.
    hash_keys: bool,
    /// The function of hashes.
    hash_key_function: String,
    /// True if a key without rights may call every API.
    allow_master_keys: bool,
    /// Does not count rates.
    disable_rate_limit: bool,
    /// Does not count quotas.
    disable_quota: bool,
    /// The Redis of sessions.
    storage: remote::Conf,
    /// Refusals in other words.
    messages: Messages,
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Access {
    ways: Box<[Way]>,
    /// Number of the way that says who calls.
    identity: usize,
    strip: bool,
    naming: Naming,
    allows_master_keys: bool,
    counts_rates: bool,
    counts_quotas: bool,
    api: Box<str>,
    org: Box<str>,
    sessions: Arc<Sessions>,
    storage: remote::Conf,
    messages: Messages,
    /// The Redis of sessions; `None`: they are in this process.
    remote: Option<Remote>,
}

const DISALLOWED: &str = "Access to this API has been disallowed";
/// Most milliseconds for which one request is held because of its rate.
const LONGEST_HOLD: u64 = 50_000;

/// Sessions that a request has read from Redis, by their names.
pub(super) type Read = [ReadSession];

impl Access {
    pub(super) fn compile(conf: Conf, api: &str, org: &str, name: &str) -> Result<Self, Invalid> {
        let ways = conf.ways.into_iter().enumerate().map(|(at, way)| {
            Way::compile(way, name)
                .map_err(|error| Invalid { path: format!("access.ways[{at}].{}", error.path), ..error })
        });
        Ok(Self {
            ways: ways.collect::<Result<_, _>>()?,
            identity: conf.identity,
            strip: conf.strip_auth_data,
            naming: Naming::new(conf.hash_keys, &conf.hash_key_function),
            allows_master_keys: conf.allow_master_keys,
            counts_rates: !conf.disable_rate_limit,
            counts_quotas: !conf.disable_quota,
            api: api.into(),
            org: org.into(),
            sessions: Arc::default(),
            storage: conf.storage,
            messages: conf.messages,
            remote: None,
        })
    }

    pub(super) fn build(mut self, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        self.ways.iter_mut().try_for_each(|way| way.build(build))?;
        let remote = self.storage.build(build)?;
        Ok(Self { sessions: Sessions::of(build.states), remote, ..self })
    }

    /// Fetches what has to be known before a request is checked.
    pub(super) async fn fetch(&self, now_ms: u64, io: &dyn Io) {
        for way in &self.ways {
            way.fetch(now_ms, io).await;
        }
    }

    /// Reads sessions from Redis, up to the first that there is. A Redis that does not answer has none, so that the request is
    /// refused.
    pub(super) async fn read(&self, names: Vec<Box<[u8]>>, now_ms: u64, progress: &mut Progress) {
        for name in names {
            let session = match &self.remote {
                Some(remote) => remote.session(&name, now_ms).await.ok().flatten(),
                None => None,
            };
            let is_found = session.is_some();
            progress.read.push((name, session));
            if is_found {
                return;
            }
        }
    }

    /// Looks whether there is a value beside sessions in Redis. One that does not answer has none, so that the request is
    /// refused.
    pub(super) async fn look(&self, name: String, now_ms: u64, progress: &mut Progress) {
        let is_there = match &self.remote {
            Some(remote) => remote.exists(&name, now_ms).await.unwrap_or(false),
            None => false,
        };
        progress.records.push((name, is_there));
    }

    /// True if there is a value beside sessions with this name, at a time in milliseconds since 1970 and on the clock of the
    /// process.
    pub(super) fn has_record(&self, name: String, now: (u64, u64), progress: &Progress) -> Result<bool, Stop> {
        if self.remote.is_none() {
            return Ok(self.sessions.records.get(&name, now.0 / 1000).is_some());
        }
        let looked = progress.records.iter().find(|(known, _)| *known == name).map(|(_, is_there)| *is_there);
        looked.or_else(|| self.sessions.seen(&name, now.1)).ok_or(Stop::Waits(Wait::Record(name)))
    }

    /// Id of the API.
    pub(super) fn api(&self) -> &str {
        &self.api
    }

    /// True if the provider of a token has signed it.
    pub(super) async fn verifies(&self, token: &str, now_ms: u64, io: &dyn Io) -> bool {
        for way in &self.ways {
            if let Some(is_good) = way.verifies(token, now_ms, io).await {
                return is_good;
            }
        }
        false
    }

    /// True if a service or a script has to be asked who the caller is, and gets the whole request.
    pub(super) fn needs_body(&self) -> bool {
        self.ways.iter().any(|way| way.custom().is_some() || way.script().is_some())
    }

    /// Asks the service or the script who the caller is.
    ///
    /// # Errors
    /// Its answer in place of the upstream's, and whether it refuses the request.
    pub(super) async fn ask(
        &self,
        cx: &mut RequestCx<'_>,
        io: &dyn Io,
        place: &PerRequest<Known>,
        progress: &mut Progress,
    ) -> Result<(), (Flow, bool)> {
        const UNKNOWN: Refusal = (403, "Key not authorised");
        const FORBIDDEN: Refusal = (403, "Forbidden");
        let verdict = match (self.ways.iter().find_map(Way::custom), self.ways.iter().find_map(Way::script)) {
            (Some(service), _) => service.ask(cx, io, place).await,
            (None, Some(script)) => script.ask(cx, place).await,
            (None, None) => return Ok(()),
        };
        progress.custom = Some(match verdict {
            Err(reason) => {
                tracing::warn!(reason, "authentication by middleware failed: its request is refused");
                Err(UNKNOWN)
            }
            Ok(Verdict::Answer(answer)) => return Err((answer.send(cx), answer.is_error())),
            Ok(Verdict::Nobody) => Err(FORBIDDEN),
            Ok(Verdict::Caller(token, written)) => match self.sessions.compile_apart(&written) {
                Ok(session) => Ok((Arc::new(session), self.naming.name(&token))),
                Err(reason) => {
                    tracing::warn!(reason, "the session of a middleware cannot be used: its request is refused");
                    Err(FORBIDDEN)
                }
            },
        });
        Ok(())
    }

    /// Counts a request against a quota in Redis.
    pub(super) async fn count(&self, name: &[u8], renewal: u64, progress: &mut Progress) {
        let counted = match &self.remote {
            Some(remote) => remote.count(name, renewal).await.map_err(drop),
            None => Err(()),
        };
        progress.counted = Some(counted);
    }

    /// Finds the session of the caller. The end of `room` is scratch memory.
    pub(super) fn authenticate(
        &self,
        cx: &mut RequestCx<'_>,
        room: &mut Vec<u8>,
        known: &mut Known,
    ) -> Result<(), Flow> {
        for (number, way) in self.ways.iter().enumerate() {
            let start = room.len();
            let now = (cx.unix_ms(), cx.now_ms());
            let found = way.session(cx, now, self, room, &known.progress);
            // Scratch memory may be read by the next plugin or request, were there a fault elsewhere.
            room.get_mut(start..).unwrap_or_default().fill(0);
            room.truncate(start);
            match found {
                Ok((session, identity)) => {
                    if number == self.identity {
                        (known.session, known.identity) = (Some(session), identity);
                    }
                }
                Err(Stop::Waits(wait)) => return Err(known.wait_for(wait)),
                Err(Stop::Refused(refusal)) => {
                    let (status, text) = self.messages.of(way, refusal);
                    let challenge = way.challenge().filter(|_| status == 401);
                    let fields = challenge.map(|challenge| ("Www-Authenticate", challenge));
                    return Err(body::error(cx, status, text, fields.as_slice()));
                }
            }
        }
        Ok(())
    }

    /// Takes the credentials out of a request that goes on.
    pub(super) fn strip(&self, cx: &mut RequestCx<'_>) {
        if self.strip {
            self.ways.iter().for_each(|way| way.strip(cx));
        }
    }

    /// The sessions, and the organisation of the API.
    pub(super) fn sessions(&self) -> (&Sessions, &str) {
        (&self.sessions, &self.org)
    }

    /// The session of the key that `room` begins with at `start`. A text that is no whole key is one of the API's
    /// organisation.
    pub(super) fn find(
        &self,
        room: &mut Vec<u8>,
        start: usize,
        read: (&Read, u64),
    ) -> Result<Option<Arc<Session>>, Stop> {
        let mut unread = Vec::new();
        let found = self.look_up(room.get(start..).unwrap_or_default(), read, &mut unread);
        match found {
            Some(found) => Ok(Some(found)),
            None => self.look_up_in_org(room, start, read, unread),
        }
    }

    /// The session of the id that `room` begins with at `start`, within the API's organisation.
    pub(super) fn find_of_org(
        &self,
        room: &mut Vec<u8>,
        start: usize,
        read: (&Read, u64),
    ) -> Result<Option<Arc<Session>>, Stop> {
        self.look_up_in_org(room, start, read, Vec::new())
    }

    fn look_up_in_org(
        &self,
        room: &mut Vec<u8>,
        start: usize,
        read: (&Read, u64),
        mut unread: Vec<Box<[u8]>>,
    ) -> Result<Option<Arc<Session>>, Stop> {
        let end = room.len();
        room.extend_from_slice(self.org.as_bytes());
        room.extend_from_within(start..end);
        let mut found = self.look_up(room.get(end..).unwrap_or_default(), read, &mut unread);
        let id = room.get(start..end).and_then(|id| std::str::from_utf8(id).ok());
        if let (None, Some(_), Some(id)) = (&found, self.naming.function, id) {
            found = self.look_up(self.naming.key(&self.org, id).as_bytes(), read, &mut unread);
        }
        if found.is_none() && !unread.is_empty() {
            return Err(Stop::Waits(Wait::Sessions(unread)));
        }
        Ok(found)
    }

    /// The session of a key. Its name is added to `unread` where Redis has to be asked for it.
    fn look_up(&self, key: &[u8], (read, now_ms): (&Read, u64), unread: &mut Vec<Box<[u8]>>) -> Option<Arc<Session>> {
        if self.remote.is_none() {
            return self.sessions.find_key(self.naming, key);
        }
        let digits = self.naming.hashes.then(|| HashFunction::of_key(key).hash(key));
        let name = digits.as_ref().map_or(key, |digits| digits.as_bytes());
        if let Some((_, session)) = read.iter().find(|(known, _)| **known == *name) {
            return session.clone();
        }
        let recalled = self.sessions.recall(name, now_ms);
        if recalled.is_none() && unread.iter().all(|known| **known != *name) {
            unread.push(name.into());
        }
        recalled
    }

    /// Name under which the requests of an identity of a token count.
    pub(super) fn name_of_identity(&self, identity: &str) -> String {
        match &self.remote {
            None => format!("{} {identity}", self.org),
            Some(_) => self.naming.name(&self.naming.key(&self.org, &md5_text(identity))),
        }
    }

    /// Checks that the session may call the API now, in this version, at this path.
    pub(super) fn authorise(
        &self,
        request: &Request,
        rest: &[u8],
        version: Option<&str>,
        now: i64,
        known: &Known,
    ) -> Result<(), Refusal> {
        let Some(session) = &known.session else { return Err((403, DISALLOWED)) };
        if session.is_inactive {
            return Err((403, "Key is inactive, please renew"));
        }
        if session.expires > 0 && now >= session.expires {
            return Err((401, "Key has expired, please renew"));
        }
        let Some(right) = session.right(&self.api) else {
            let is_master = session.rights.is_empty() && self.allows_master_keys;
            return if is_master { Ok(()) } else { Err((403, DISALLOWED)) };
        };
        let fits = |version: &str| right.versions.is_empty() || right.versions.iter().any(|known| **known == *version);
        if version.is_some_and(|version| !fits(version)) {
            return Err((403, DISALLOWED));
        }
        let own = name_of(known.method, request);
        let is_allowed = |methods: &[Box<str>]| methods.iter().any(|method| method.as_bytes() == own);
        let mut allowed = right.allowed.iter();
        if right.allowed.is_empty()
            || allowed.any(|allowed| is_allowed(&allowed.methods) && allowed.path.is_match(rest))
        {
            return Ok(());
        }
        Err((403, "Access to this resource has been disallowed"))
    }

    /// Limits of a session for the API, and the name of what they count apart from the key's own.
    pub(super) fn limits_of<'s>(&self, session: &'s Session) -> (&'s Limits, &'s str) {
        let own = session.right(&self.api).and_then(|right| right.limits.as_ref());
        own.map_or((&session.limits, ""), |(limits, apart)| (limits, &**apart))
    }

    /// Counts a request against the limits of the session: an endpoint's rate, the rate, the quota. `path` is the place of
    /// the path behind the listen path in `room`. It gives the requests of the quota that are used.
    pub(super) fn limit(
        &self,
        cx: &RequestCx<'_>,
        room: &mut Vec<u8>,
        path: Range<usize>,
        (counters, tells_rates): (&Counters, bool),
        known: &mut Known,
    ) -> Result<u64, Stop> {
        let Some(session) = known.session.clone() else { return Err((403, DISALLOWED).into()) };
        let identity = known.identity.take();
        let caller = (&*session, identity.as_deref().unwrap_or(&session.name));
        let counted = self.count_call(cx, room, path, caller, (counters, tells_rates), known);
        // Records of requests tell it.
        known.identity = identity;
        counted
    }

    /// Counts a request of a session under this name.
    fn count_call(
        &self,
        cx: &RequestCx<'_>,
        room: &mut Vec<u8>,
        path: Range<usize>,
        (session, name): (&Session, &str),
        (counters, tells_rates): (&Counters, bool),
        known: &mut Known,
    ) -> Result<u64, Stop> {
        let (limits, apart) = self.limits_of(session);
        let scope = Scope { session, name, apart };
        let now = known.progress.unix_ms(cx);
        if self.counts_rates && !known.progress.has_rate {
            let method = name_of(known.method, cx.request());
            let of_endpoint = self.limit_endpoint((method, now), room, path, &scope, counters);
            let tells = Some(&mut *known).filter(|_| tells_rates);
            let passed = of_endpoint.and_then(|()| counters.rate(now, room, &scope, limits, tells));
            if let Err(refusal) = passed {
                return Err(hold(limits, known).filter(|_| refusal.0 == 429).map_or(refusal.into(), Stop::Waits));
            }
            known.progress.has_rate = true;
        }
        if self.counts_quotas {
            let tells = !tells_rates;
            match &self.remote {
                None => {
                    counters.quota(now, room, &scope, limits, Some(&mut *known).filter(|_| tells)).map_err(Stop::from)
                }
                Some(_) => count_remotely(now, &scope, limits, tells, known),
            }
        } else {
            Ok(0)
        }
    }

    /// Counts a request against the rate of its endpoint.
    fn limit_endpoint(
        &self,
        (method, now): (&[u8], u64),
        room: &mut Vec<u8>,
        path: Range<usize>,
        scope: &Scope<'_>,
        counters: &Counters,
    ) -> Result<(), Refusal> {
        let endpoints = scope.session.right(&self.api).map_or(&[][..], |right| &right.endpoints);
        if endpoints.is_empty() {
            return Ok(());
        }
        let rest = room.get(path).unwrap_or_default();
        let own = endpoints.iter().find(|(path, name, _)| name.as_bytes() == method && path.is_match(rest));
        let Some((path, _, limits)) = own else { return Ok(()) };
        counters.rate(now, room, &Scope { apart: path.as_str(), ..*scope }, limits, None)
    }
}

/// The wait of a request beyond its rate, where its limits hold it.
fn hold(limits: &Limits, known: &mut Known) -> Option<Wait> {
    let (times, ms) = &mut known.progress.held;
    if *times >= limits.throttle_retries || *ms + limits.throttle_interval > LONGEST_HOLD {
        return None;
    }
    (*times, *ms) = (*times + 1, *ms + limits.throttle_interval);
    Some(Wait::Throttle(limits.throttle_interval))
}

/// Counts a request against a quota in Redis, once it was asked.
fn count_remotely(
    unix_ms: u64,
    scope: &Scope<'_>,
    limits: &Limits,
    tells: bool,
    known: &mut Known,
) -> Result<u64, Stop> {
    let Some(quota) = limits.quota else {
        if tells {
            known.told = [limits.quota_max, 0, scope.session.quota_renews];
        }
        return Ok(0);
    };
    let counted = match known.progress.counted {
        None => {
            let mut name = Vec::new();
            write_quota_key(scope.apart, scope.name, &mut name);
            return Err(Stop::Waits(Wait::Quota(name, limits.renewal.unwrap_or_default() / 1000)));
        }
        Some(counted) => counted.map_err(|()| (403, DISALLOWED))?,
    };
    let Counted { used, left } = counted;
    if tells {
        let reset = left.map_or(scope.session.quota_renews, |left| (unix_ms + left).div_ceil(1000) as i64);
        known.told = [limits.quota_max, quota.saturating_sub(used) as i64, reset];
    }
    if used > quota { Err((403, "Quota exceeded").into()) } else { Ok(used) }
}

/// MD5 of an identity in hexadecimal digits, of which Tyk makes the keys of tokens.
fn md5_text(text: &str) -> String {
    format!("{:x}", md5::compute(text))
}
