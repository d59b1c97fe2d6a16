//! A session: what a key allows, in the form in which a request needs it.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use regex::bytes::Regex;
use serde_json::{Map, Value};

use super::hash::HashFunction;
use crate::auth::credentials::same_secret;
use crate::traffic::PlanCounts;

/// A session with its policies applied.
#[derive(Debug)]
pub struct Session {
    /// Name under which the key is stored: its hash, or the key where keys are not hashed.
    pub name: Box<str>,
    /// The organisation.
    pub org: Box<str>,
    /// Seconds since 1970 from which the key is refused; 0 or less: never.
    pub expires: i64,
    /// True for a key that is refused until it is active again.
    pub is_inactive: bool,
    /// True if its requests are recorded whole.
    pub is_detailed: bool,
    /// Limits of the key.
    pub limits: Limits,
    /// APIs that the key may call; none for a master key.
    pub rights: Rights,
    /// The password of basic authentication.
    pub password: Option<Password>,
    /// The secret of signatures.
    pub hmac_secret: Option<Box<str>>,
    /// True if requests may be signed.
    pub hmac_enabled: bool,
    /// `quota_renews` as it was written.
    pub quota_renews: i64,
    /// Sets the counts of one version of the session apart from those of the one before.
    pub quota_epoch: u64,
    /// Second of the last change, which begins a new window of the rate.
    pub last_updated: Box<str>,
    /// `meta_data`, which rewrites and headers read.
    pub meta: Arc<Map<String, Value>>,
    /// The alias.
    pub alias: Box<str>,
    /// The tags.
    pub tags: Box<[Box<str>]>,
    /// Ids of the policies that were applied, as they are written in the key.
    pub policies: Box<[Box<str>]>,
    /// Percents of the quota that are told when they are used (`monitor.trigger_limits`).
    pub triggers: Box<[f64]>,
    /// Clients and certificates that the key belongs to; `None`: neither.
    pub bound: Option<Box<Bound>>,
}

/// Clients and certificates that a key belongs to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// The client of OAuth that got it as a token; empty: none.
    pub oauth_client: Box<str>,
    /// Ids of certificates, one of which its caller has to show (`mtls_static_certificate_bindings`).
    pub certificates: Box<[Box<str>]>,
}

/// A rate and a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Requests in `per`; none: no limit.
    pub rate: Option<u64>,
    /// Milliseconds.
    pub per: u64,
    /// Requests in `renewal`; none: no quota.
    pub quota: Option<u64>,
    /// `quota_max` as it was written.
    pub quota_max: i64,
    /// Milliseconds until the quota begins anew; none: never.
    pub renewal: Option<u64>,
    /// Milliseconds for which a request beyond the rate is held before it is counted again.
    pub throttle_interval: u64,
    /// Number of times that a request beyond the rate is held; 0: it is refused at once.
    pub throttle_retries: u32,
    /// Levels of fields of an operation of GraphQL (`max_query_depth`); 0 and -1: no limit.
    pub query_depth: i64,
}

/// Rights of a key to one API.
#[derive(Debug)]
pub struct Right {
    /// The API.
    pub api: Box<str>,
    /// Versions; none: all.
    pub versions: Box<[Box<str>]>,
    /// Paths of the API that it may call; none: all.
    pub allowed: Box<[Allowed]>,
    /// Limits of their own, and the name under which they count.
    pub limits: Option<(Limits, Box<str>)>,
    /// Rates of single endpoints: path, method, limits.
    pub endpoints: Box<[(Regex, Box<str>, Limits)]>,
    /// Rights to a GraphQL API; none: there are none of its own.
    pub graphql: Option<Box<GraphqlRights>>,
}

/// A type of a schema, and fields of it; `*` stands for all.
pub type TypeFields = (Box<str>, Box<[Box<str>]>);

/// A type of a schema, a field of it, and levels below it.
pub type FieldDepth = (Box<str>, Box<str>, i64);

/// Rights of a key to a GraphQL API.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GraphqlRights {
    /// Fields that it may ask for; none: all.
    pub allowed: Box<[TypeFields]>,
    /// Fields that it may not ask for, where `allowed` has none.
    pub restricted: Box<[TypeFields]>,
    /// Limits of levels below single fields at the root: type, field, levels.
    pub field_depths: Box<[FieldDepth]>,
    /// True if it may not ask about the schema.
    pub hides_schema: bool,
}

impl GraphqlRights {
    fn of(right: &Value) -> Option<Box<Self>> {
        let types = |field: &str| -> Box<[TypeFields]> {
            list(right, field).map(|of| (text(of, "name").into(), texts(of.get("fields")))).collect()
        };
        let depths = list(right, "field_access_rights").map(|of| {
            let limit = number(of.get("limits").and_then(|limits| limits.get("max_query_depth")));
            (text(of, "type_name").into(), text(of, "field_name").into(), limit)
        });
        let rights = Self {
            allowed: types("allowed_types"),
            restricted: types("restricted_types"),
            field_depths: depths.collect(),
            hides_schema: right.get("disable_introspection") == Some(&Value::Bool(true)),
        };
        (rights != Self::default()).then(|| Box::new(rights))
    }
}

/// Paths that a key may call.
#[derive(Debug)]
pub struct Allowed {
    /// Searched in the path behind the listen path.
    pub path: Regex,
    /// Methods.
    pub methods: Box<[Box<str>]>,
}

/// The password of a session.
#[derive(Clone, Debug)]
pub struct Password {
    /// The text or its hash.
    pub text: Box<str>,
    /// The function of the hash; empty: it is the text itself.
    pub hash: Box<str>,
}

/// A number, also one that was written as a text or with a fraction.
pub(super) fn number(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::Number(number)) => {
            number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or_default().clamp(-1e15, 1e15) as i64)
        }
        Some(Value::String(text)) => text.trim().parse().unwrap_or_default(),
        _ => 0,
    }
}

/// The same with its fraction.
pub(super) fn float(value: Option<&Value>) -> f64 {
    value.and_then(Value::as_f64).unwrap_or_default()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: Option<&Value>) -> Box<[Box<str>]> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

fn list<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

impl Limits {
    /// The limits in the fields of a session, a policy, or the limit of an access right.
    pub(super) fn of(value: &Value) -> Self {
        let (rate, per) = (float(value.get("rate")), float(value.get("per")));
        let quota_max = number(value.get("quota_max"));
        let renewal = number(value.get("quota_renewal_rate"));
        Self {
            rate: (rate > 0.0 && per > 0.0).then_some(rate.ceil() as u64),
            per: (per.max(0.0) * 1000.0) as u64,
            quota: u64::try_from(quota_max).ok().filter(|quota| *quota > 0),
            quota_max,
            renewal: u64::try_from(renewal).ok().filter(|renewal| *renewal > 0).map(|renewal| renewal * 1000),
            throttle_interval: (float(value.get("throttle_interval")).max(0.0) * 1000.0) as u64,
            throttle_retries: u32::try_from(number(value.get("throttle_retry_limit"))).unwrap_or_default(),
            query_depth: number(value.get("max_query_depth")),
        }
    }
}

/// Most regular expressions of one session; one with more is refused where it is made.
const MOST_PATTERNS: usize = 256;
/// Most memory of one of them.
const PATTERN_BYTES: usize = 1 << 18;

/// Counts more patterns of a session.
fn add_patterns(count: &mut usize, more: usize) -> Result<(), String> {
    *count += more;
    match *count > MOST_PATTERNS {
        true => Err(format!("a key may have {MOST_PATTERNS} patterns of paths")),
        false => Ok(()),
    }
}

/// A pattern of a path, found anywhere in it.
fn pattern(text: &str, count: &mut usize) -> Result<Regex, String> {
    add_patterns(count, 1)?;
    let text = crate::tyk::patterns::pattern_of(text);
    let built = regex::bytes::RegexBuilder::new(&text).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build();
    built.map_err(|error| format!("'{text}' is no regular expression: {error}"))
}

impl Session {
    /// Compiles a session with its policies applied.
    ///
    /// # Errors
    /// A pattern of a path is none.
    pub(super) fn compile(name: &str, value: &Value, epoch: u64) -> Result<Self, String> {
        let mut rights = Vec::new();
        let mut count = 0;
        for (id, right) in value.get("access_rights").and_then(Value::as_object).into_iter().flatten() {
            let api = right.get("api_id").and_then(Value::as_str).filter(|api| !api.is_empty()).unwrap_or(id);
            rights.push(Right::shared(api, right, &mut count)?);
        }
        let basic = value.get("basic_auth_data").filter(|basic| !text(basic, "password").is_empty());
        let hmac = Some(text(value, "hmac_string")).filter(|secret| !secret.is_empty());
        Ok(Self {
            name: name.into(),
            org: text(value, "org_id").into(),
            expires: number(value.get("expires")),
            is_inactive: value.get("is_inactive") == Some(&Value::Bool(true)),
            is_detailed: ["enable_detailed_recording", "enable_detail_recording"]
                .iter()
                .any(|field| value.get(*field) == Some(&Value::Bool(true))),
            limits: Limits::of(value),
            rights: Rights::new(rights),
            password: basic
                .map(|basic| Password { text: text(basic, "password").into(), hash: text(basic, "hash_type").into() }),
            hmac_secret: hmac.map(Into::into),
            hmac_enabled: value.get("hmac_enabled") == Some(&Value::Bool(true)),
            quota_renews: number(value.get("quota_renews")),
            quota_epoch: epoch,
            last_updated: text(value, "last_updated").into(),
            meta: Arc::new(value.get("meta_data").and_then(Value::as_object).cloned().unwrap_or_default()),
            alias: text(value, "alias").into(),
            tags: texts(value.get("tags")),
            policies: texts(value.get("apply_policies")),
            triggers: list(value.get("monitor").unwrap_or(&Value::Null), "trigger_limits")
                .filter_map(Value::as_f64)
                .collect(),
            bound: Bound::of(value),
        })
    }

    /// Requests that count against the quota of the key, and the second since 1970 at which it begins anew.
    #[must_use]
    pub fn quota_used(&self, counts: &PlanCounts, now: u64) -> (u64, Option<u64>) {
        let mut name = Vec::new();
        write_quota_name(&self.name, "", self.quota_epoch, &mut name);
        match counts.window(&name).filter(|(ends, _)| *ends > now) {
            Some((ends, count)) => (count, self.limits.renewal.map(|_| ends.div_ceil(1000))),
            None => (0, None),
        }
    }

    /// Rights of the key to an API. A master key has no rights of its own.
    #[must_use]
    pub fn right(&self, api: &str) -> Option<&Right> {
        self.rights.of(api)
    }
}

/// Rights to APIs. They lie in the order of the hashes of their ids, which are side by side: a key with a hundred rights is
/// found in a few lines of memory, where a search among the ids themselves would touch one for each of its steps.
#[derive(Debug)]
pub struct Rights {
    hashes: Box<[u32]>,
    list: Box<[Arc<Right>]>,
}

impl Rights {
    fn new(mut list: Vec<Arc<Right>>) -> Self {
        list.sort_by_cached_key(|right| Self::hash(&right.api));
        Self { hashes: list.iter().map(|right| Self::hash(&right.api)).collect(), list: list.into() }
    }

    /// The hash of an id, which is configuration and not input.
    fn hash(api: &str) -> u32 {
        foldhash::fast::FixedState::default().hash_one(api) as u32
    }

    /// The rights to an API.
    #[must_use]
    pub fn of(&self, api: &str) -> Option<&Right> {
        let hash = Self::hash(api);
        let first = self.hashes.partition_point(|known| *known < hash);
        let equal = self.hashes.get(first..)?.iter().take_while(|known| **known == hash).count();
        self.list.get(first..first + equal)?.iter().map(AsRef::as_ref).find(|right| *right.api == *api)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Right> {
        self.list.iter().map(AsRef::as_ref)
    }

    /// True for a master key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl Bound {
    fn of(value: &Value) -> Option<Box<Self>> {
        let bound = Self {
            oauth_client: text(value, "oauth_client_id").into(),
            certificates: texts(value.get("mtls_static_certificate_bindings")),
        };
        (bound != Self::default()).then(|| Box::new(bound))
    }
}

impl Password {
    /// Compares a password with the one of a session. Without one it takes as long.
    #[must_use]
    pub fn fits(held: Option<&Self>, given: &[u8]) -> bool {
        let Some(Self { text, hash }) = held else {
            let _ = same_secret(given, b"not the password of anybody");
            return false;
        };
        if hash.is_empty() {
            return same_secret(given, text.as_bytes());
        }
        let Some(function) = HashFunction::named(hash) else { return false };
        same_secret(function.hash(given).as_bytes(), text.as_bytes())
    }
}

/// Rights that are in use, by their API and their fields as they are written.
#[derive(Default)]
struct SharedRights {
    known: HashMap<String, Weak<Right>>,
    /// Entries at which those out of use are dropped.
    full: usize,
}

/// Entries below which nothing is dropped.
const FEW: usize = 1024;

static SHARED: LazyLock<Mutex<SharedRights>> = LazyLock::new(Mutex::default);

impl SharedRights {
    fn put(&mut self, name: String, right: &Arc<Right>) {
        if self.known.len() >= self.full {
            self.known.retain(|_, right| right.strong_count() > 0);
            self.full = (2 * self.known.len()).max(FEW);
        }
        self.known.insert(name, Arc::downgrade(right));
    }
}

impl Right {
    /// Rights that are the same for other keys are one and the same: most keys have those of a few policies. `count` are the
    /// patterns of a session so far.
    fn shared(api: &str, right: &Value, count: &mut usize) -> Result<Arc<Self>, String> {
        let name = format!("{api}\n{right}");
        let shared = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shared().known.get(&name).and_then(Weak::upgrade);
        if let Some(known) = known {
            add_patterns(count, known.allowed.len() + known.endpoints.len())?;
            return Ok(known);
        }
        let made = Arc::new(Self::compile(api, right, count)?);
        shared().put(name, &made);
        Ok(made)
    }

    fn compile(api: &str, value: &Value, count: &mut usize) -> Result<Self, String> {
        let mut allowed = Vec::new();
        for entry in list(value, "allowed_urls") {
            let path = pattern(text(entry, "url"), count)?;
            allowed.push(Allowed { path, methods: texts(entry.get("methods")) });
        }
        let mut endpoints = Vec::new();
        for endpoint in list(value, "endpoints") {
            for method in list(endpoint, "methods") {
                let limit = Limits::of(method.get("limit").unwrap_or(&Value::Null));
                endpoints.push((pattern(text(endpoint, "path"), count)?, text(method, "name").into(), limit));
            }
        }
        let own = value.get("limit").filter(|limit| limit.as_object().is_some_and(|limit| !limit.is_empty()));
        let own = own.map(Limits::of);
        let own = own.filter(|limits| limits.rate.is_some() || limits.quota_max != 0 || limits.query_depth != 0);
        let scope = Some(text(value, "allowance_scope")).filter(|scope| !scope.is_empty()).unwrap_or(api);
        Ok(Self {
            api: api.into(),
            versions: texts(value.get("versions")),
            allowed: allowed.into(),
            limits: own.map(|limits| (limits, scope.into())),
            endpoints: endpoints.into(),
            graphql: GraphqlRights::of(value),
        })
    }
}

/// Appends the name of the count of a quota.
pub(crate) fn write_quota_name(name: &str, apart: &str, epoch: u64, out: &mut Vec<u8>) {
    for part in ["tyk quota ", name, ":", apart, ":"] {
        out.extend_from_slice(part.as_bytes());
    }
    weir_wire::push_number(out, epoch);
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::Session;

    #[test]
    fn rights_are_found_by_the_ids_of_apis() {
        let rights: Map<_, _> = (0..1000).map(|n| (format!("api-{n}"), json!({"versions": [n.to_string()]}))).collect();
        let session = Session::compile("k", &json!({"access_rights": rights}), 0).expect("a session");
        for n in 0..1000 {
            let right = session.right(&format!("api-{n}")).expect("a right");
            assert_eq!(*right.versions[0], *n.to_string());
        }
        for api in ["api-1000", "", "api"] {
            assert!(session.right(api).is_none(), "{api}");
        }
        let other =
            Session::compile("k2", &json!({"access_rights": {"api-1": {"versions": ["1"]}}}), 0).expect("a session");
        let same = |one: &Session, other: &Session| {
            std::ptr::eq(one.right("api-1").expect("a right"), other.right("api-1").expect("a right"))
        };
        assert!(same(&session, &other), "rights that are the same are there once");
        let master = Session::compile("k", &json!({"access_rights": {}}), 0).expect("a session");
        assert!(master.rights.is_empty() && master.right("api-1").is_none());
    }
}
