//! Asks secret managers: Vault over HTTP, and folders.
//!
//! What they said is kept, and used until it is `secrets.ttl` old. When a manager cannot be reached then, it is used
//! further: what is live uses it as well, and a change of something else shall not have to wait for the manager. A secret
//! that was never had, and one that the manager says there is none of, refuses the change that needs it.

mod folder;
mod reach;
mod vault;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_config::{Manager, SecretSource, Settings};

pub(crate) use reach::Reach;
use vault::Client;

/// Most bytes of what a manager says at one time.
const MOST: usize = 1 << 20;

/// How many configurations that do not ask for it a secret outlives: one that is only checked shall not forget what
/// the live one uses.
const LOADS: u64 = 8;

/// What secret managers said.
#[derive(Debug)]
pub(crate) struct SecretManagers {
    ttl: Duration,
    timeout: Duration,
    client: Client,
    reach: Reach,
    kept: Mutex<Kept>,
}

/// Secret managers as somebody may ask them.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    managers: &'a SecretManagers,
    /// Whether anything may be reached.
    trusted: bool,
}

#[derive(Default)]
struct Kept {
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
    /// There is no such secret, or it may not be read.
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
    fn fetch(&self, manager: Manager<'_>, key: &str) -> Result<String, String> {
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
                self.managers.said(&place)?.key(key)
            }
            Manager::File(directory) => {
                if !self.trusted {
                    self.managers.reach.folder(directory)?;
                }
                let directory = directory.display().to_string();
                let place = Place::File { directory, path: key.to_owned(), trusted: self.trusted };
                self.managers.said(&place)?.key("")
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
            kept: Mutex::default(),
        }
    }

    /// The managers for whoever may ask for anything, or only for what the settings allow.
    pub(crate) fn asked(&self, trusted: bool) -> Asked<'_> {
        Asked { managers: self, trusted }
    }

    /// What the settings allow.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
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

    /// How often [`Self::changed`] is to be called.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Asks again for all secrets in use. Tells whether one is another one now.
    pub(crate) async fn changed(self: &Arc<Self>) -> bool {
        let managers = Arc::clone(self);
        let changed = tokio::task::spawn_blocking(move || managers.refresh()).await.unwrap_or(false);
        if changed {
            tracing::info!("a secret is another one now, so the configuration is read again");
        }
        changed
    }

    fn refresh(&self) -> bool {
        let places: Vec<Place> = self.kept().answers.keys().cloned().collect();
        let mut changed = false;
        for place in &places {
            let said = match self.ask(place) {
                Ok(said) => said,
                Err(Refusal::None(reason) | Refusal::Unable(reason) | Refusal::Unreachable(reason)) => {
                    tracing::warn!("{}: {reason}; the secret that is in use stays", place.name());
                    continue;
                }
            };
            let mut kept = self.kept();
            // What was asked for meanwhile is as young.
            let Some(answer) = kept.answers.get_mut(place) else { continue };
            changed |= answer.said != said;
            answer.said = said;
            answer.asked = Some(now());
        }
        changed
    }

    fn said(&self, place: &Place) -> Result<Said, String> {
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
            Err(Refusal::None(reason)) => Err(reason),
            Err(Refusal::Unable(reason) | Refusal::Unreachable(reason)) => {
                let Some(answer) = self.kept().answers.get(place).map(|answer| answer.said.clone()) else {
                    return Err(reason);
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
