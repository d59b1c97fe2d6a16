//! Keys of an API: authentication, the rights of a session, and its limits.

use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{BuildCx, Flow, Invalid, Io, Request, RequestCx};

use super::Refusal;
use super::credentials::{self, Way};
use super::jwt::Stop;
use super::limits::{Counters, Scope};
use crate::tyk::body;
use crate::tyk::sessions::{Naming, Session, Sessions};
use crate::tyk::shared::Known;

/// Authentication, rights and limits.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Conf {
    /// Ways of authentication in their order; all have to succeed.
    ways: Vec<credentials::Conf>,
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
}

/// The same, compiled.
#[derive(Debug)]
pub(super) struct Access {
    ways: Box<[Way]>,
    strip: bool,
    naming: Naming,
    allows_master_keys: bool,
    counts_rates: bool,
    counts_quotas: bool,
    api: Box<str>,
    org: Box<str>,
    sessions: Arc<Sessions>,
}

const DISALLOWED: &str = "Access to this API has been disallowed";

impl Access {
    pub(super) fn compile(conf: Conf, api: &str, org: &str, name: &str) -> Result<Self, Invalid> {
        let ways = conf.ways.into_iter().enumerate().map(|(at, way)| {
            Way::compile(way, name)
                .map_err(|error| Invalid { path: format!("access.ways[{at}].{}", error.path), ..error })
        });
        Ok(Self {
            ways: ways.collect::<Result<_, _>>()?,
            strip: conf.strip_auth_data,
            naming: Naming::new(conf.hash_keys, &conf.hash_key_function),
            allows_master_keys: conf.allow_master_keys,
            counts_rates: !conf.disable_rate_limit,
            counts_quotas: !conf.disable_quota,
            api: api.into(),
            org: org.into(),
            sessions: Arc::default(),
        })
    }

    pub(super) fn build(mut self, build: &BuildCx<'_>) -> Result<Self, Invalid> {
        self.ways.iter_mut().try_for_each(|way| way.build(build))?;
        Ok(Self { sessions: Sessions::of(build.states), ..self })
    }

    /// Fetches what has to be known before a request is checked.
    pub(super) async fn fetch(&self, now_ms: u64, io: &dyn Io) {
        for way in &self.ways {
            way.fetch(now_ms, io).await;
        }
    }

    /// Finds the session of the caller. The end of `room` is scratch memory.
    pub(super) fn authenticate(
        &self,
        cx: &mut RequestCx<'_>,
        room: &mut Vec<u8>,
        known: &mut Known,
    ) -> Result<(), Flow> {
        for way in &self.ways {
            let start = room.len();
            let found = way.session(cx.request(), (cx.unix_ms(), cx.now_ms()), self, room);
            // What stands in scratch memory may be read by the next plugin or request, were there a fault elsewhere.
            room.get_mut(start..).unwrap_or_default().fill(0);
            room.truncate(start);
            match found {
                Ok((session, identity)) => {
                    // The first way says who calls.
                    if known.session.is_none() {
                        (known.session, known.identity) = (Some(session), identity);
                    }
                }
                Err(Stop::NeedsKeys) => return Err(Flow::Suspend),
                Err(Stop::Refused((status, text))) => {
                    let challenge = way.challenge().filter(|_| status == 401);
                    let fields = challenge.map(|challenge| ("Www-Authenticate", challenge));
                    return Err(body::error(cx, status, text, fields.as_slice()));
                }
            }
        }
        if self.strip {
            self.ways.iter().for_each(|way| way.strip(cx));
        }
        Ok(())
    }

    /// The sessions, and the organisation of the API.
    pub(super) fn sessions(&self) -> (&Sessions, &str) {
        (&self.sessions, &self.org)
    }

    /// The session of the key that `room` begins with at `start`. A text that is no whole key is one of the API's
    /// organisation.
    pub(super) fn find(&self, room: &mut Vec<u8>, start: usize) -> Option<Arc<Session>> {
        let key = room.get(start..)?;
        self.sessions.find_key(self.naming, key).or_else(|| self.find_of_org(room, start))
    }

    /// The session of the id that `room` begins with at `start`, within the API's organisation.
    pub(super) fn find_of_org(&self, room: &mut Vec<u8>, start: usize) -> Option<Arc<Session>> {
        let end = room.len();
        room.extend_from_slice(self.org.as_bytes());
        room.extend_from_within(start..end);
        if let Some(session) = self.sessions.find_key(self.naming, room.get(end..)?) {
            return Some(session);
        }
        self.naming.function?;
        let id = std::str::from_utf8(room.get(start..end)?).ok()?;
        self.sessions.find_key(self.naming, self.naming.key(&self.org, id).as_bytes())
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
        let is_allowed =
            |methods: &[Box<str>]| methods.iter().any(|method| method.as_bytes() == request.method_bytes());
        let mut allowed = right.allowed.iter();
        if right.allowed.is_empty()
            || allowed.any(|allowed| is_allowed(&allowed.methods) && allowed.path.is_match(rest))
        {
            return Ok(());
        }
        Err((403, "Access to this resource has been disallowed"))
    }

    /// Counts a request against the limits of the session: an endpoint's rate, the rate, the quota. `path` is the place of
    /// the path behind the listen path in `room`.
    pub(super) fn limit(
        &self,
        cx: &RequestCx<'_>,
        room: &mut Vec<u8>,
        path: Range<usize>,
        (counters, tells_rates): (&Counters, bool),
        known: &mut Known,
    ) -> Result<(), Refusal> {
        let Some(session) = known.session.clone() else { return Err((403, DISALLOWED)) };
        let identity = known.identity.take();
        let caller = (&*session, identity.as_deref().unwrap_or(&session.name));
        let counted = self.count(cx, room, path, caller, (counters, tells_rates), known);
        // Records of requests tell it.
        known.identity = identity;
        counted
    }

    /// Counts a request of a session under this name.
    fn count(
        &self,
        cx: &RequestCx<'_>,
        room: &mut Vec<u8>,
        path: Range<usize>,
        (session, name): (&Session, &str),
        (counters, tells_rates): (&Counters, bool),
        known: &mut Known,
    ) -> Result<(), Refusal> {
        let right = session.right(&self.api);
        if let Some(right) = right.filter(|right| self.counts_rates && !right.endpoints.is_empty()) {
            let (method, rest) = (cx.request().method_bytes(), room.get(path).unwrap_or_default());
            let own = right.endpoints.iter().find(|(path, name, _)| name.as_bytes() == method && path.is_match(rest));
            if let Some((path, _, limits)) = own {
                let apart = path.as_str();
                counters.rate(cx, room, &Scope { session, name, apart }, limits, None)?;
            }
        }
        let own = right.and_then(|right| right.limits.as_ref());
        let (limits, apart) = own.map_or((&session.limits, ""), |(limits, apart)| (limits, &**apart));
        let scope = Scope { session, name, apart };
        if self.counts_rates {
            counters.rate(cx, room, &scope, limits, Some(&mut *known).filter(|_| tells_rates))?;
        }
        if self.counts_quotas {
            counters.quota(cx, room, &scope, limits, Some(known).filter(|_| !tells_rates))?;
        }
        Ok(())
    }
}
