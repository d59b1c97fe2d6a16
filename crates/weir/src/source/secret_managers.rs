//! Clients of secret managers: Vault over HTTP, and folders.
//!
//! Their answers are cached for `secrets.ttl`, and for longer while a manager is unreachable, so that a change of something
//! else does not wait for the manager. The value of a reference in force stays in use until there is another value. Requests
//! that need a secret that was never fetched are refused, and the manager is asked again until the secret is there.

mod answers;
mod folder;
mod reach;
mod vault;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;
use weir_config::{Manager, NoSecret, SecretSource, Settings};

pub(crate) use answers::Answers;
use reach::Reach;
use vault::Client;

/// Maximum size of an answer of a manager, in bytes.
const MOST: usize = 1 << 20;

/// Number of configurations without a use for a secret after which it is forgotten. A configuration that is only checked
/// must not make the gateway forget the secrets of the live one.
const LOADS: u64 = 8;

/// First and longest pause before a missing secret is asked for again, at most `secrets.ttl`.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Number of awaited secrets beyond those of the last whole configuration at which everything is read again, to forget
/// secrets that are not needed any more.
const MOST_STALE: usize = 1_000;

/// Secret managers, with a cache of their answers.
#[derive(Debug)]
pub(crate) struct SecretManagers {
    ttl: Duration,
    timeout: Duration,
    client: Client,
    reach: Reach,
    kept: Mutex<Kept>,
    /// Notified when the next question is due earlier.
    rescheduled: Notify,
}

/// Access to secret managers for one reader.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    managers: &'a SecretManagers,
    /// True if every manager and variable may be read.
    trusted: bool,
    /// `None` for a configuration that is only checked.
    answers: Option<RefCell<Answers>>,
}

struct Kept {
    /// Values of the references in force.
    last: HashMap<String, String>,
    /// Missing secrets that the configuration in force needs.
    waiting: HashSet<Location>,
    /// Number of missing secrets of the last whole configuration.
    waiting_whole: usize,
    /// Current pause before missing secrets are asked for, and its end.
    retry: Duration,
    retry_at: Instant,
    /// Time at which all outdated answers are fetched again.
    refresh_at: Instant,
    answers: HashMap<Location, Fetched>,
    /// Unreachable managers, with the time and the reason, so that a thousand secrets do not wait one after the other.
    unreachable: HashMap<String, (Instant, String)>,
    /// Number of the configuration that was read last, which tells the secrets in use.
    load: u64,
}

/// Location of the secrets that one question fetches.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Location {
    Vault { uri: String, namespace: Option<String>, token: String, path: String },
    File { directory: String, path: String, trusted: bool },
}

/// A cached answer.
struct Fetched {
    contents: Contents,
    /// Time of the answer; `None` if it is outdated.
    at: Option<Instant>,
    load: u64,
}

/// Contents of a location.
#[derive(Clone, PartialEq, Eq)]
enum Contents {
    /// Values by key, as in Vault.
    Keys(HashMap<String, String>),
    /// One value, as in a file.
    Whole(String),
}

/// Reason of a manager for not answering.
#[derive(Debug)]
enum Refusal {
    /// The gateway's settings, or the reference itself, do not allow it.
    Forbidden(String),
    /// There is no such secret, or the manager does not allow it to be read.
    None(String),
    /// The manager cannot answer now.
    Unable(String),
    /// The manager cannot be reached.
    Unreachable(String),
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

impl SecretSource for Access<'_> {
    fn fetch(&self, reference: &str, manager: Manager<'_>, key: &str) -> Result<String, NoSecret> {
        let (place, key) = self.location(manager, key).map_err(NoSecret::Refused)?;
        let value = self.managers.contents(&place).and_then(|contents| contents.key(key).map_err(NoSecret::Absent));
        if let Some(answers) = &self.answers {
            answers.borrow_mut().note(reference, place, &value);
        }
        value
    }

    fn last(&self, reference: &str) -> Option<String> {
        let answers = self.answers.as_ref()?;
        let value = self.managers.kept().last.get(reference).cloned()?;
        answers.borrow_mut().keep(reference, &value);
        Some(value)
    }
}

impl Access<'_> {
    /// Checks that a variable of the environment may be read.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn may_read(&self, name: &str) -> Result<(), String> {
        if self.trusted { Ok(()) } else { self.managers.reach.variable(name) }
    }

    /// The answers so far.
    pub(crate) fn answers(self) -> Answers {
        self.answers.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The location of a secret, and its key there.
    fn location<'k>(&self, manager: Manager<'_>, key: &'k str) -> Result<(Location, &'k str), String> {
        match manager {
            Manager::Vault { uri, prefix, token, namespace } => {
                if !self.trusted {
                    self.managers.reach.host(uri)?;
                }
                let (path, key) = vault::path_and_key(prefix, key)?;
                let place = Location::Vault {
                    uri: uri.trim_end_matches('/').to_owned(),
                    namespace: namespace.map(str::to_owned),
                    token: token.reveal().to_owned(),
                    path,
                };
                Ok((place, key))
            }
            Manager::File(directory) => {
                if !self.trusted {
                    self.managers.reach.folder(directory)?;
                }
                let directory = directory.display().to_string();
                let place = Location::File { directory, path: key.to_owned(), trusted: self.trusted };
                Ok((place, ""))
            }
        }
    }
}

impl Contents {
    fn key(self, key: &str) -> Result<String, String> {
        match self {
            Self::Whole(value) => Ok(value),
            Self::Keys(mut keys) => keys.remove(key).ok_or_else(|| format!("the secret has no key {key:?}")),
        }
    }
}

impl SecretManagers {
    /// The managers that the settings describe.
    pub(crate) fn new(settings: &Settings) -> Self {
        let timeout = settings.secrets.timeout.duration();
        Self {
            ttl: settings.secrets.ttl.duration(),
            timeout,
            client: Client::new(timeout, &settings.tls.trusted_certificate),
            reach: Reach::new(settings),
            kept: Mutex::new(Kept::new(settings.secrets.ttl.duration())),
            rescheduled: Notify::new(),
        }
    }

    /// Access without bounds, or only to what the settings allow. With `serves`, the configuration may be put in force.
    pub(crate) fn access(&self, trusted: bool, serves: bool) -> Access<'_> {
        Access { managers: self, trusted, answers: serves.then(RefCell::default) }
    }

    /// Begins to read a whole configuration, and forgets the answers that none of the last ones used.
    pub(crate) fn begin(&self) {
        let mut kept = self.kept();
        kept.load += 1;
        let oldest = kept.load.saturating_sub(LOADS);
        kept.answers.retain(|_, answer| answer.load >= oldest);
    }

    /// Marks all answers as outdated.
    pub(crate) fn expire(&self) {
        let mut kept = self.kept();
        kept.unreachable.clear();
        for answer in kept.answers.values_mut() {
            answer.at = None;
        }
    }

    /// Records that a configuration with these answers is in force: a whole one, or a change of the one before.
    pub(crate) fn serve(&self, answers: Answers, is_whole: bool) {
        let Answers { values, waiting } = answers;
        let mut kept = self.kept();
        if is_whole {
            (kept.last, kept.waiting_whole) = (values, waiting.len());
        } else {
            kept.last.extend(values);
        }
        let is_new = waiting.iter().any(|place| !kept.waiting.contains(place));
        if is_whole {
            kept.waiting = waiting;
        } else {
            kept.waiting.extend(waiting);
        }
        if is_new {
            kept.retry = FIRST_RETRY.min(self.ttl);
            kept.retry_at = now() + kept.retry;
            self.rescheduled.notify_one();
        }
    }

    /// Waits until [`Self::changed`] is to be called.
    pub(crate) async fn due(&self) {
        loop {
            let at = {
                let kept = self.kept();
                if kept.waiting.is_empty() { kept.refresh_at } else { kept.refresh_at.min(kept.retry_at) }
            };
            tokio::select! {
                () = sleep_until(at.into()) => return,
                () = self.rescheduled.notified() => {}
            }
        }
    }

    /// Fetches the secrets that are due. Returns true if a secret has changed, or is there at last.
    pub(crate) async fn changed(self: &Arc<Self>) -> bool {
        let managers = Arc::clone(self);
        let changed = tokio::task::spawn_blocking(move || managers.refresh()).await.unwrap_or(false);
        if changed {
            tracing::info!("a secret has changed, so the configuration is read again");
        }
        changed
    }

    fn refresh(&self) -> bool {
        let (places, is_whole) = {
            let kept = self.kept();
            let is_whole = kept.refresh_at <= now();
            let in_use = kept.answers.keys().filter(|place| is_whole && !kept.waiting.contains(*place));
            (in_use.chain(&kept.waiting).cloned().collect::<Vec<_>>(), is_whole)
        };
        let mut changed = false;
        for place in &places {
            let outcome = self.ask(place);
            let mut kept = self.kept();
            let load = kept.load;
            let is_waited_for = kept.waiting.contains(place);
            match (outcome, kept.answers.get_mut(place)) {
                (Ok(contents), Some(answer)) => {
                    changed |= answer.contents != contents;
                    answer.contents = contents;
                    answer.at = Some(now());
                }
                (Ok(contents), None) if is_waited_for => {
                    changed = true;
                    kept.answers.insert(place.clone(), Fetched { contents, at: Some(now()), load });
                }
                // Forgotten meanwhile.
                (Ok(_), None) => {}
                (Err(refusal), Some(_)) => {
                    tracing::warn!("{}: {}; the secret that is in use stays", place.name(), refusal.reason());
                }
                // Logged when the secret was first asked for.
                (Err(refusal), None) => tracing::debug!("{}: {}", place.name(), refusal.reason()),
            }
        }
        let mut kept = self.kept();
        if is_whole {
            kept.refresh_at = now() + self.ttl;
        }
        kept.retry = (kept.retry * 2).min(LAST_RETRY).min(self.ttl);
        kept.retry_at = now() + kept.retry;
        changed || kept.waiting.len() > 2 * kept.waiting_whole + MOST_STALE
    }

    fn contents(&self, place: &Location) -> Result<Contents, NoSecret> {
        let mut kept = self.kept();
        let load = kept.load;
        if let Some(answer) = kept.answers.get_mut(place) {
            answer.load = load;
            if answer.at.is_some_and(|at| at.elapsed() < self.ttl) {
                return Ok(answer.contents.clone());
            }
        }
        drop(kept);
        match self.ask(place) {
            Ok(contents) => {
                let answer = Fetched { contents: contents.clone(), at: Some(now()), load };
                self.kept().answers.insert(place.clone(), answer);
                Ok(contents)
            }
            Err(Refusal::Forbidden(reason)) => Err(NoSecret::Refused(reason)),
            Err(Refusal::None(reason)) => Err(NoSecret::Absent(reason)),
            Err(Refusal::Unable(reason) | Refusal::Unreachable(reason)) => {
                let Some(answer) = self.kept().answers.get(place).map(|answer| answer.contents.clone()) else {
                    return Err(NoSecret::Absent(reason));
                };
                tracing::warn!("{}: {reason}; its last answer is used", place.name());
                Ok(answer)
            }
        }
    }

    fn ask(&self, place: &Location) -> Result<Contents, Refusal> {
        match place {
            Location::File { directory, path, trusted } => folder::read(Path::new(directory), path, &|file| {
                self.reach.not_own(file)?;
                if *trusted { Ok(()) } else { self.reach.file(file) }
            }),
            Location::Vault { uri, namespace, token, path } => {
                if let Some((when, reason)) = self.kept().unreachable.get(uri)
                    && when.elapsed() < self.timeout
                {
                    return Err(Refusal::Unreachable(reason.clone()));
                }
                let answer = self.client.read(uri, namespace.as_deref(), token, path);
                let mut kept = self.kept();
                match &answer {
                    Err(Refusal::Unreachable(reason)) => {
                        kept.unreachable.insert(uri.clone(), (now(), reason.clone()));
                    }
                    _ => drop(kept.unreachable.remove(uri)),
                }
                answer
            }
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn new(ttl: Duration) -> Self {
        Self {
            last: HashMap::new(),
            waiting: HashSet::new(),
            waiting_whole: 0,
            retry: FIRST_RETRY.min(ttl),
            retry_at: now(),
            refresh_at: now() + ttl,
            answers: HashMap::new(),
            unreachable: HashMap::new(),
            load: 0,
        }
    }
}

impl Refusal {
    fn reason(&self) -> &str {
        match self {
            Self::Forbidden(reason) | Self::None(reason) | Self::Unable(reason) | Self::Unreachable(reason) => reason,
        }
    }
}

impl Location {
    /// The name for people, without the token.
    fn name(&self) -> String {
        match self {
            Self::Vault { uri, path, .. } => format!("{uri}/v1/{path}"),
            Self::File { directory, path, .. } => format!("{directory}/{path}"),
        }
    }
}

fn now() -> Instant {
    Instant::now()
}
