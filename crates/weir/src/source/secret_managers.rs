//! Clients of secret managers: Vault over HTTP, and folders.
//!
//! What they said is kept, and used until it is `secrets.ttl` old. When a manager cannot be reached then, it is used
//! further: what is live uses it as well, and a change of something else shall not have to wait for the manager. The value
//! of a reference that serves is used further for as long as there is no other one, whatever becomes of the manager. What
//! needs a secret that was never had is refused, and the manager is asked again until the secret is there.

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

/// Most bytes of what a manager says at one time.
const MOST: usize = 1 << 20;

/// How many configurations that do not ask for it a secret outlives: one that is only checked shall not forget what
/// the live one uses.
const LOADS: u64 = 8;

/// How soon a secret that is not there is asked for again, and at most how much later each time; never later than
/// `secrets.ttl`.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// How many secrets may be waited for beyond those of the whole configuration, before that is read again to forget those
/// that nobody needs any more.
const MOST_STALE: usize = 1_000;

/// What secret managers said.
#[derive(Debug)]
pub(crate) struct SecretManagers {
    ttl: Duration,
    timeout: Duration,
    client: Client,
    reach: Reach,
    kept: Mutex<Kept>,
    /// Notified when the time of the next question is another one.
    rescheduled: Notify,
}

/// Secret managers as somebody may ask them.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    managers: &'a SecretManagers,
    /// Whether anything may be reached.
    trusted: bool,
    /// `None` where nothing will serve.
    answers: Option<RefCell<Answers>>,
}

struct Kept {
    /// The values of references in what serves.
    last: HashMap<String, String>,
    /// What serves would need and is not there.
    waiting: HashSet<Place>,
    /// How many of these the last whole configuration had.
    waiting_whole: usize,
    /// How soon they are asked for after this time, and when.
    retry: Duration,
    retry_at: Instant,
    /// When everything is asked for that is old enough.
    refresh_at: Instant,
    answers: HashMap<Place, Answer>,
    /// Managers that could not be reached, with why and when: a thousand secrets shall not wait for each of them.
    unreachable: HashMap<String, (Instant, String)>,
    /// Number of the configuration that was read last, to know what is in use.
    load: u64,
}

/// Where secrets lie that come with one question.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Place {
    Vault { uri: String, namespace: Option<String>, token: String, path: String },
    File { directory: String, path: String, trusted: bool },
}

struct Answer {
    said: Said,
    /// `None`: to be asked again.
    asked: Option<Instant>,
    load: u64,
}

/// What a manager says.
#[derive(Clone, PartialEq, Eq)]
enum Said {
    /// Values by key, as in Vault.
    Keys(HashMap<String, String>),
    /// A file is one value.
    Whole(String),
}

/// Why a manager says nothing.
#[derive(Debug)]
enum Refusal {
    /// The gateway's settings, or the reference itself, do not allow it.
    Forbidden(String),
    /// There is no such secret, or the manager does not allow it to be read.
    None(String),
    /// It cannot answer now.
    Unable(String),
    /// It cannot be reached.
    Unreachable(String),
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

impl SecretSource for Asked<'_> {
    fn fetch(&self, reference: &str, manager: Manager<'_>, key: &str) -> Result<String, NoSecret> {
        let (place, key) = self.place(manager, key).map_err(NoSecret::Refused)?;
        let said = self.managers.said(&place).and_then(|said| said.key(key).map_err(NoSecret::Absent));
        if let Some(answers) = &self.answers {
            answers.borrow_mut().note(reference, place, &said);
        }
        said
    }

    fn last(&self, reference: &str) -> Option<String> {
        let answers = self.answers.as_ref()?;
        let value = self.managers.kept().last.get(reference).cloned()?;
        answers.borrow_mut().keep(reference, &value);
        Some(value)
    }
}

impl Asked<'_> {
    /// Whether a variable of the environment may be read.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn may_read(&self, name: &str) -> Result<(), String> {
        if self.trusted { Ok(()) } else { self.managers.reach.variable(name) }
    }

    /// What was asked for, and what came of it.
    pub(crate) fn answers(self) -> Answers {
        self.answers.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The place of a secret, and its key there.
    fn place<'k>(&self, manager: Manager<'_>, key: &'k str) -> Result<(Place, &'k str), String> {
        match manager {
            Manager::Vault { uri, prefix, token, namespace } => {
                if !self.trusted {
                    self.managers.reach.host(uri)?;
                }
                let (path, key) = vault::path_and_key(prefix, key)?;
                let place = Place::Vault {
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
                let place = Place::File { directory, path: key.to_owned(), trusted: self.trusted };
                Ok((place, ""))
            }
        }
    }
}

impl Said {
    fn key(self, key: &str) -> Result<String, String> {
        match self {
            Self::Whole(value) => Ok(value),
            Self::Keys(mut keys) => keys.remove(key).ok_or_else(|| format!("the secret has no key {key:?}")),
        }
    }
}

impl SecretManagers {
    /// Managers as the settings want them asked.
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

    /// The managers for whoever may ask for anything, or only for what the settings allow. With `serves` what comes of it
    /// may serve.
    pub(crate) fn asked(&self, trusted: bool, serves: bool) -> Asked<'_> {
        Asked { managers: self, trusted, answers: serves.then(RefCell::default) }
    }

    /// A configuration is read as a whole from here on. What none of the last ones asked for is in use no more.
    pub(crate) fn begin(&self) {
        let mut kept = self.kept();
        kept.load += 1;
        let oldest = kept.load.saturating_sub(LOADS);
        kept.answers.retain(|_, answer| answer.load >= oldest);
    }

    /// Managers are asked again, however young what they said is.
    pub(crate) fn expire(&self) {
        let mut kept = self.kept();
        kept.unreachable.clear();
        for answer in kept.answers.values_mut() {
            answer.asked = None;
        }
    }

    /// A configuration serves that was read with these answers; the whole of it, or a change of the one before.
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

    /// Asks again for the secrets whose time has come. Tells whether one is another one now, or is there at last.
    pub(crate) async fn changed(self: &Arc<Self>) -> bool {
        let managers = Arc::clone(self);
        let changed = tokio::task::spawn_blocking(move || managers.refresh()).await.unwrap_or(false);
        if changed {
            tracing::info!("a secret is another one now, so the configuration is read again");
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
            let said = self.ask(place);
            let mut kept = self.kept();
            let load = kept.load;
            let is_waited_for = kept.waiting.contains(place);
            match (said, kept.answers.get_mut(place)) {
                (Ok(said), Some(answer)) => {
                    changed |= answer.said != said;
                    answer.said = said;
                    answer.asked = Some(now());
                }
                (Ok(said), None) if is_waited_for => {
                    changed = true;
                    kept.answers.insert(place.clone(), Answer { said, asked: Some(now()), load });
                }
                // It was forgotten meanwhile.
                (Ok(_), None) => {}
                (Err(refusal), Some(_)) => {
                    tracing::warn!("{}: {}; the secret that is in use stays", place.name(), refusal.reason());
                }
                // That was said when it was first asked for.
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

    fn said(&self, place: &Place) -> Result<Said, NoSecret> {
        let mut kept = self.kept();
        let load = kept.load;
        if let Some(answer) = kept.answers.get_mut(place) {
            answer.load = load;
            if answer.asked.is_some_and(|asked| asked.elapsed() < self.ttl) {
                return Ok(answer.said.clone());
            }
        }
        drop(kept);
        match self.ask(place) {
            Ok(said) => {
                let answer = Answer { said: said.clone(), asked: Some(now()), load };
                self.kept().answers.insert(place.clone(), answer);
                Ok(said)
            }
            Err(Refusal::Forbidden(reason)) => Err(NoSecret::Refused(reason)),
            Err(Refusal::None(reason)) => Err(NoSecret::Absent(reason)),
            Err(Refusal::Unable(reason) | Refusal::Unreachable(reason)) => {
                let Some(answer) = self.kept().answers.get(place).map(|answer| answer.said.clone()) else {
                    return Err(NoSecret::Absent(reason));
                };
                tracing::warn!("{}: {reason}; what it said last is used", place.name());
                Ok(answer)
            }
        }
    }

    fn ask(&self, place: &Place) -> Result<Said, Refusal> {
        match place {
            Place::File { directory, path, trusted } => folder::read(Path::new(directory), path, &|file| {
                self.reach.not_own(file)?;
                if *trusted { Ok(()) } else { self.reach.file(file) }
            }),
            Place::Vault { uri, namespace, token, path } => {
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

impl Place {
    /// Its name for people, without what it is asked with.
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
