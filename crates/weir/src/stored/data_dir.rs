//! The data directory: opening its store, and the right to write to the store.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::anyhow;
use weir_admin::Rest;
use weir_config::{Diagnostic, Settings};
use weir_proxy::Snapshot;
use weir_store::{
    Embedded, Etcd, Folder, Frozen, History, LastGood, Listing, OpenError, Options, Seal, Secrets, Store, StoreError,
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
    /// The embedded store, or its substitute.
    pub(crate) store: Arc<dyn Store>,
    /// The reason why the embedded store is substituted.
    pub(crate) damage: Option<String>,
    /// The last-good copy of the live configuration.
    pub(crate) copy: Copy,
    /// The etcd that holds the store, if one does.
    pub(crate) etcd: Option<Arc<Etcd>>,
    /// The revision of the store when it was opened.
    revision: u64,
}

/// Status of an embedded store.
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

/// Status of a store that cannot be opened, with the revision of the copy served instead.
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
    /// Opens the store named in the settings, and reads its resources. With `succeeds`, the old process of an upgrade
    /// still writes to the store.
    pub(crate) fn open(settings: &Settings, succeeds: bool) -> Result<(Self, Listing), Failure> {
        let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(refused)?;
        let seal = Arc::new(seal(&folder, settings)?);
        let history = history(settings);
        let options = Options { folder: folder.clone(), seal: Arc::clone(&seal), history, succeeds };
        // An empty database beside a copy with resources has been lost.
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

    /// Opens the etcd named in the settings. The folder holds a copy of the configuration in force.
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

    /// Status of the store for the metrics.
    pub(crate) fn status(&self) -> Arc<dyn StoreStatus> {
        match (&self.embedded, &self.etcd) {
            (Some(embedded), _) => Arc::new(Status(Arc::clone(embedded))),
            (None, Some(etcd)) => Arc::new(etcd::Status(etcd.health())),
            (None, None) => Arc::new(Down(self.revision)),
        }
    }

    /// The right to write to the store, unless the store cannot be written to; `admin` pauses the source of changes.
    pub(crate) fn write_right(&self, live: &Live, admin: Option<Arc<Rest>>) -> Option<WriteRight> {
        let embedded = Arc::clone(self.embedded.as_ref()?);
        Some(WriteRight { live: live.clone(), embedded, copy: self.copy.clone(), admin })
    }

    /// Waits until this process may write, and reads the last changes of the old process. Returns the configuration to
    /// serve, if it has changed.
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

    /// Closes the store at the end of this process, or because another process has taken over.
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

/// Opens a store whose thread has a lower priority than the workers.
fn open(options: Options, nice: u8) -> Result<(Embedded, Listing), OpenError> {
    let opened = thread::scope(|scope| {
        // The thread of the store inherits the priority of the thread that starts it.
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

/// The right while another process holds it. Changes wait meanwhile.
#[derive(Debug)]
pub(crate) struct Lent {
    _paused: Paused,
    embedded: Arc<Embedded>,
    copy: Ended,
    admin: Option<Arc<Rest>>,
}

impl WriteRight {
    /// Waits for the changes in progress, and then lends the right to write to another process. Later changes wait for the
    /// process that accepts their connections. Cancel-safe: the future may be dropped, and the function called again.
    pub(crate) async fn lend(&self) -> Lent {
        if let Some(admin) = &self.admin {
            admin.begin().await;
        }
        // The other process writes its copy to the same file, so this one stops first. Copies stop before changes are
        // paused, because a copy in progress waits for the change in progress.
        let copy = self.copy.end().await;
        let paused = self.live.pause().await;
        self.embedded.release().await;
        Lent { _paused: paused, embedded: Arc::clone(&self.embedded), copy, admin: self.admin.clone() }
    }
}

impl Lent {
    /// Takes the right back after the other process has ended, or is about to end. Changes are made here again.
    pub(crate) fn take_back(self) {
        self.embedded.resume();
        self.copy.resume();
        if let Some(admin) = self.admin {
            admin.end();
        }
    }
}

/// The key from the settings, or else that of the folder.
pub(crate) fn seal(folder: &Folder, settings: &Settings) -> Result<Seal, Failure> {
    seal_of(folder, settings, Arc::new(SecretFields))
}

/// The same for a store of other resources, with what is secret in them.
pub(crate) fn seal_of(folder: &Folder, settings: &Settings, fields: Arc<dyn Secrets>) -> Result<Seal, Failure> {
    match settings.store.key.expose() {
        "" => {
            // A new key could not decrypt an existing store.
            let create = !folder.database().exists();
            Seal::from_file(&folder.key(), create, fields)
        }
        text => Seal::from_hex(text, "store.key", fields),
    }
    .map_err(refused)
}

/// The limits of the history, from the settings.
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
