//! The data directory: opening the store in it, and who may write to it.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::anyhow;
use weir_admin::Rest;
use weir_config::{Diagnostic, Settings};
use weir_proxy::Snapshot;
use weir_store::{
    Embedded, Etcd, Folder, Frozen, History, LastGood, Listing, OpenError, Options, Seal, Store, StoreError,
};
use weir_telemetry::metrics::StoreStatus;

use crate::failure::Failure;
use crate::process::priority::stand_back;
use crate::source::rules::Rules;
use crate::source::secrets::SecretFields;
use crate::stored::copy::{Copy, Ended};
use crate::stored::etcd::{self, Beginning};
use crate::stored::live::{Live, Paused, State};

/// A store that is open.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub(crate) folder: Folder,
    /// The embedded store, unless it is damaged.
    pub(crate) embedded: Option<Arc<Embedded>>,
    /// That one, or what stands in for it.
    pub(crate) store: Arc<dyn Store>,
    /// Why something stands in for it.
    pub(crate) damage: Option<String>,
    /// The copy of what is live.
    pub(crate) copy: Copy,
    /// The etcd that the store is in, if it is.
    pub(crate) etcd: Option<Arc<Etcd>>,
    /// The revision that it had when it was opened.
    revision: u64,
}

/// An embedded store.
#[derive(Debug)]
struct Status(Arc<Embedded>);

impl StoreStatus for Status {
    fn is_up(&self) -> bool {
        self.0.health().fault.is_none()
    }

    fn revision(&self) -> u64 {
        self.0.health().revision
    }
}

/// A store that cannot be opened, at the revision of the copy that stands in for it.
#[derive(Debug)]
struct Down(u64);

impl StoreStatus for Down {
    fn is_up(&self) -> bool {
        false
    }

    fn revision(&self) -> u64 {
        self.0
    }
}

impl DataDir {
    /// Opens the store that the settings name, with all that is in it. With `succeeds` the process before this one still
    /// writes to it.
    pub(crate) fn open(settings: &Settings, succeeds: bool) -> Result<(Self, Listing), Failure> {
        let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(refused)?;
        let seal = Arc::new(seal(&folder, settings)?);
        let history = history(settings);
        let options = Options { folder: folder.clone(), seal: Arc::clone(&seal), history, succeeds };
        // An empty database beside a copy of resources is one that was lost.
        let copy = Copy::new(folder.last_good(), Arc::clone(&seal));
        let opened = match is_lost(&folder) {
            true => Err(OpenError::Broken(format!("{} is gone or empty", folder.database().display()))),
            false => open(options, settings.config.nice),
        };
        match opened {
            Ok((embedded, listing)) => {
                let embedded = Arc::new(embedded);
                let store = Arc::clone(&embedded) as Arc<dyn Store>;
                let revision = listing.revision;
                let embedded = Some(embedded);
                Ok((Self { folder, embedded, store, damage: None, copy, etcd: None, revision }, listing))
            }
            Err(OpenError::Broken(reason)) => {
                let listing = LastGood::read(&folder.last_good(), &seal).map_err(|missing| {
                    refused(format!(
                        "the store cannot be opened: {reason}; and there is no copy of it to serve from: {missing}"
                    ))
                })?;
                let damage = format!(
                    "the store cannot be opened: {reason}; revision {} is served from a copy and cannot be changed; \
                     see `weir store check` and `weir store restore`",
                    listing.revision
                );
                let store = Arc::new(Frozen::new(listing.clone(), StoreError::Unavailable(damage.clone())));
                let (damage, revision) = (Some(damage), listing.revision);
                Ok((Self { folder, embedded: None, store, damage, copy, etcd: None, revision }, listing))
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Begins with the etcd that the settings name. The folder is for a copy of what serves.
    pub(crate) fn of_etcd(settings: &Settings) -> Result<(Self, Beginning), Failure> {
        let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(refused)?;
        let seal = Arc::new(seal(&folder, settings)?);
        let copy = Copy::new(folder.path().join(etcd::copy_name(settings)), Arc::clone(&seal));
        let path = copy.path();
        let left = path.exists().then(|| LastGood::served(path, &seal));
        let beginning = etcd::begin(settings, left)?;
        let etcd = Arc::clone(&beginning.store);
        let (store, revision) = (Arc::clone(&etcd) as Arc<dyn Store>, beginning.listing.revision);
        Ok((Self { folder, embedded: None, store, damage: None, copy, etcd: Some(etcd), revision }, beginning))
    }

    /// What the metrics say of the store.
    pub(crate) fn status(&self) -> Arc<dyn StoreStatus> {
        match (&self.embedded, &self.etcd) {
            (Some(embedded), _) => Arc::new(Status(Arc::clone(embedded))),
            (None, Some(etcd)) => Arc::new(etcd::Status(etcd.health())),
            (None, None) => Arc::new(Down(self.revision)),
        }
    }

    /// The right to write to the store, unless nobody has it; `admin` is where changes come from.
    pub(crate) fn write_right(&self, live: &Live, admin: Option<Arc<Rest>>) -> Option<WriteRight> {
        let embedded = Arc::clone(self.embedded.as_ref()?);
        Some(WriteRight { live: live.clone(), embedded, copy: self.copy.clone(), admin })
    }

    /// Waits until this process may write, and reads what the one before it wrote last. Gives what has to be served then.
    pub(crate) async fn catch_up(&self, state: &mut State, rules: &Rules) -> anyhow::Result<Option<Arc<Snapshot>>> {
        let Some(embedded) = &self.embedded else { return Ok(None) };
        embedded.settled().await?;
        let listing = self.store.list(None).await?;
        let caught_up = state.catch_up(rules, listing);
        let ready = caught_up.map_err(|findings| {
            let first = findings.into_iter().find(Diagnostic::is_error);
            anyhow!("the last change cannot be served: {}", first.map(|found| found.to_string()).unwrap_or_default())
        })?;
        Ok(ready.map(|ready| ready.snapshot))
    }

    /// Lets go of the store at the end of this process, or because another one has taken over.
    pub(crate) async fn leave(&self, live: &Live, handed_over: bool) {
        if handed_over {
            self.copy.abandon();
        } else if self.damage.is_none() {
            self.copy.finish(live).await;
        }
        if let Some(embedded) = &self.embedded {
            embedded.close(if handed_over { "another process has taken over" } else { "the gateway stops" }).await;
        }
    }
}

/// Opens a store whose thread stands back behind the workers.
fn open(options: Options, nice: u8) -> Result<(Embedded, Listing), OpenError> {
    let opened = thread::scope(|scope| {
        // Its thread is as the one that starts it.
        let opening = scope.spawn(|| {
            stand_back(nice);
            Embedded::open(options)
        });
        opening.join()
    });
    opened.unwrap_or_else(|panicked| resume_unwind(panicked))
}

/// The right to write to a store, which may be lent to another process.
#[derive(Debug)]
pub(crate) struct WriteRight {
    live: Live,
    embedded: Arc<Embedded>,
    copy: Copy,
    admin: Option<Arc<Rest>>,
}

/// The right is another process's. Changes wait.
#[derive(Debug)]
pub(crate) struct Lent {
    _paused: Paused,
    embedded: Arc<Embedded>,
    copy: Ended,
    admin: Option<Arc<Rest>>,
}

impl WriteRight {
    /// Waits for the changes under way, and lets another process write from then on. Further ones wait for whichever
    /// process accepts their connections. May be given up and called again.
    pub(crate) async fn lend(&self) -> Lent {
        if let Some(admin) = &self.admin {
            admin.begin().await;
        }
        // The other process writes one to the same place. It is ended before changes are held up: one that is begun waits
        // for the change under way.
        let copy = self.copy.end().await;
        let paused = self.live.pause().await;
        self.embedded.release().await;
        Lent { _paused: paused, embedded: Arc::clone(&self.embedded), copy, admin: self.admin.clone() }
    }
}

impl Lent {
    /// The other process has ended, or is about to; changes are made here again.
    pub(crate) fn take_back(self) {
        self.embedded.resume();
        self.copy.resume();
        if let Some(admin) = self.admin {
            admin.end();
        }
    }
}

/// The key that the settings give, or that of the folder.
pub(crate) fn seal(folder: &Folder, settings: &Settings) -> Result<Seal, Failure> {
    let fields = Arc::new(SecretFields);
    match settings.store.key.expose() {
        "" => {
            // A new key would be of no use to a store that is there.
            let create = !folder.database().exists();
            Seal::from_file(&folder.key(), create, fields)
        }
        text => Seal::from_hex(text, "store.key", fields),
    }
    .map_err(refused)
}

/// The bounds of the history that the settings give.
pub(crate) fn history(settings: &Settings) -> History {
    History { changes: settings.store.history.into(), bytes: settings.store.history_size.bytes() }
}

fn is_lost(folder: &Folder) -> bool {
    let empty = std::fs::metadata(folder.database()).map_or(true, |file| file.len() == 0);
    empty && folder.last_good().exists()
}

pub(crate) fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Other(anyhow!("{error}"))
}
