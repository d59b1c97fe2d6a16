//! The gateway API: `/tyk/…` with its secret, and the pages of health.

mod apis;
mod certs;
mod held;
mod keys;
pub(crate) mod oauth;
mod oauth_clients;
mod organisations;
mod policies;
mod records;

use std::fmt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use weir_plugins::PlanCounts;
use weir_plugins::tyk::sessions::{Naming, Sessions};
use weir_plugins::tyk::{self, ApiAnswer, ApiRequest, Caches};

use crate::conf::Conf;
use crate::files::Place;

/// Storage in which sessions outlive the process.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Stores a session as JSON under its name, with the number that sets its counts apart.
    ///
    /// # Errors
    /// The reason for which it is not stored.
    fn put(&self, name: &str, session: &Value, epoch: u64) -> Result<(), String>;

    /// Removes a session.
    ///
    /// # Errors
    /// The reason for which it is still there.
    fn remove(&self, name: &str) -> Result<(), String>;

    /// Stores a value beside sessions under its name, until a second since 1970; 0: for ever.
    ///
    /// # Errors
    /// The reason for which it is not stored.
    fn put_record(&self, name: &str, value: &str, ends: u64) -> Result<(), String>;

    /// Removes a value beside sessions.
    ///
    /// # Errors
    /// The reason for which it is still there.
    fn remove_record(&self, name: &str) -> Result<(), String>;
}

/// Reads the files again; with `true` returns when that is done, and then tells if they are in force.
pub type Reload = Box<dyn Fn(bool) -> bool + Send + Sync>;

/// The gateway API.
pub struct GatewayApi {
    conf: Conf,
    naming: Naming,
    sessions: Arc<Sessions>,
    counts: Arc<PlanCounts>,
    caches: Arc<Caches>,
    storage: Option<Arc<dyn Storage>>,
    /// Most values beside sessions.
    most_records: usize,
    /// Second since 1970 at which those that have ended were taken out.
    swept: AtomicU64,
    reload: Reload,
    /// The definitions in force.
    loaded: Mutex<Arc<apis::Loaded>>,
}

impl fmt::Debug for GatewayApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayApi").field("conf", &self.conf).finish_non_exhaustive()
    }
}

/// Tyk's words for a request without the secret.
const NO_SECRET: &str = "Attempted administrative access with invalid or missing key!";

/// Parts of an answer: the status, and the JSON of the body.
type Outcome = Result<Value, (u16, String)>;

impl GatewayApi {
    /// The API of a gateway with files at this place. Without storage, sessions end with the process. Beside them it keeps so
    /// many values at most.
    ///
    /// # Errors
    /// `tyk.conf` cannot be read.
    pub fn new(
        place: &Place,
        (sessions, counts, caches): (Arc<Sessions>, Arc<PlanCounts>, Arc<Caches>),
        (storage, most_records): (Option<Arc<dyn Storage>>, usize),
        reload: Reload,
    ) -> Result<Self, String> {
        let conf = place.conf()?;
        let naming = Naming::new(conf.hash_keys, &conf.hash_key_function);
        let loaded = Mutex::new(Arc::new(apis::Loaded::read(&conf)));
        let swept = AtomicU64::default();
        Ok(Self { conf, naming, sessions, counts, caches, storage, most_records, swept, reload, loaded })
    }

    /// Takes note that the files are in force as they are now.
    pub fn reloaded(&self) {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(apis::Loaded::read(&self.conf));
    }

    fn loaded(&self) -> Arc<apis::Loaded> {
        Arc::clone(&self.loaded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn dispatch(&self, request: &ApiRequest) -> Option<Outcome> {
        let segments: Vec<&str> = request.path.split('/').filter(|segment| !segment.is_empty()).collect();
        let method = request.method.as_str();
        Some(match (method, segments.as_slice()) {
            (_, ["keys", rest @ ..]) => keys::answer(self, request, method, rest),
            (_, ["apis", "oas", rest @ ..]) => apis::answer_oas(self, request, method, rest),
            (_, ["apis", rest @ ..]) => apis::answer(self, request, method, rest),
            (_, ["policies", rest @ ..]) => policies::answer(self, request, method, rest),
            ("GET", ["reload"] | ["reload", "group"]) => {
                let waits = argument(request, "block") == Some("true");
                if (self.reload)(waits) && waits {
                    self.reloaded();
                }
                Ok(status("ok", ""))
            }
            (_, ["reload", ..]) => method_not_supported(),
            ("GET", ["health"]) => match self.conf.health_check {
                true => Ok(json!({
                    "throttle_reqests_per_second": 0, "quota_violations_per_second": 0, "key_failures_per_second": 0,
                    "average_upstream_latency": 0, "average_requests_per_second": 0,
                })),
                false => Err((400, "Health checks are not enabled for this node".to_owned())),
            },
            (_, ["org", "keys", rest @ ..]) => organisations::answer(self, request, method, rest),
            (_, ["certs", rest @ ..]) => certs::answer(self, request, method, rest),
            ("DELETE", ["cache", id]) => {
                self.caches.invalidate(id);
                Ok(status("ok", "cache invalidated"))
            }
            (_, ["oauth", rest @ ..]) => return oauth_clients::answer(self, request, method, rest),
            _ => return None,
        })
    }

    /// True for the secret of the gateway API.
    fn is_right(&self, given: &str) -> bool {
        let secret = self.conf.secret.as_bytes();
        !secret.is_empty() && verify_slices_are_equal(given.as_bytes(), secret).is_ok()
    }

    /// Stores a session, and then serves it.
    fn put(&self, name: &str, session: &Value, keeps_counts: bool) -> Result<(), (u16, String)> {
        let before = self.sessions.written(name);
        self.sessions.put(name, session.clone(), keeps_counts).map_err(|error| (500, error))?;
        let Some(storage) = &self.storage else { return Ok(()) };
        let epoch = self.sessions.compiled(name).map_or(0, |session| session.quota_epoch);
        storage.put(name, session, epoch).map_err(|error| {
            // A definition that is not stored is not served.
            match before {
                Some(before) => drop(self.sessions.put(name, before, true)),
                None => drop(self.sessions.remove(name)),
            }
            (500, format!("storage: {error}"))
        })
    }
}

impl tyk::GatewayApi for GatewayApi {
    fn answer(&self, request: ApiRequest) -> ApiAnswer {
        if let Some(server) = &request.of_server {
            return oauth::answer(self, server, &request);
        }
        if !request.is_own && !self.is_right(&request.secret) {
            return told(403, &status("error", NO_SECRET));
        }
        match self.dispatch(&request) {
            Some(Ok(value)) => told(200, &value),
            Some(Err((code, text))) => told(code, &status("error", &text)),
            None => ApiAnswer {
                status: 404,
                content_type: "text/plain; charset=utf-8",
                fields: vec![("X-Content-Type-Options", "nosniff".to_owned())],
                body: b"404 page not found\n".to_vec(),
            },
        }
    }
}

/// An answer in JSON.
fn told(code: u16, value: &Value) -> ApiAnswer {
    let mut body = value.to_string().into_bytes();
    body.push(b'\n');
    ApiAnswer { status: code, content_type: "application/json", fields: Vec::new(), body }
}

fn status(status: &str, message: &str) -> Value {
    json!({ "status": status, "message": message })
}

fn method_not_supported() -> Outcome {
    Err((405, "Method not supported".to_owned()))
}

fn argument<'r>(request: &'r ApiRequest, name: &str) -> Option<&'r str> {
    request.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Seconds since 1970.
fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

fn random_bytes<const N: usize>() -> Result<[u8; N], (u16, String)> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| (500, "no random numbers".to_owned()))?;
    Ok(bytes)
}

/// 32 random hexadecimal digits.
fn random_id() -> Result<String, (u16, String)> {
    Ok(hex(&random_bytes::<16>()?))
}

/// Bytes in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True for an id that is the name of a file in its folder.
fn is_safe(id: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&id.len()) && id.chars().all(allowed) && !id.starts_with('.')
}

/// Writes a file as a whole.
fn write(path: &Path, text: &str) -> Result<(), (u16, String)> {
    let next = path.with_extension("json.new");
    let failed = |error: std::io::Error| (500, format!("File object creation failed: {}: {error}", path.display()));
    std::fs::write(&next, text).map_err(failed)?;
    std::fs::rename(&next, path).map_err(failed)
}

/// JSON with line ends, for files that people read.
fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
