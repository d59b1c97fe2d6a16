//! `weir store`

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde_json::Value;
use weir_config::Settings;
use weir_store::{
    Change, Commit, Database, Difference, Folder, HistoryQuery, Key, Kind, LastGood, Listing, Lock, OpenError,
    Recorded, Seal,
};

use crate::cli::{InvalidItemsArg, RulesArgs, StoreArgs, StoreCommand, UnsupportedPluginsArg};
use crate::failure::{Failure, print, print_error, print_findings};
use crate::source::changes::counted;
use crate::source::rules::Rules;
use crate::source::rules_file;
use crate::source::secrets;
use crate::source::settings;
use crate::stored::data_dir::{self, refused};
use crate::stored::live::State;

/// Runs one of the subcommands.
pub(crate) fn run(command: &StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::Check(args) => OpenedStore::of(args)?.check(),
        StoreCommand::Export(args) => OpenedStore::of(args)?.export(),
        StoreCommand::Import { file, store } => OpenedStore::of_new(store)?.import(file),
        StoreCommand::History { key, limit, store } => {
            OpenedStore::of(store)?.history(&HistoryQuery { before: None, key: key.clone(), limit: *limit })
        }
        StoreCommand::Diff { from, to, store } => OpenedStore::of(store)?.diff(*from, *to),
        StoreCommand::Rollback { revision, store } => OpenedStore::of(store)?.rollback(*revision),
        StoreCommand::Backup { file, store } => OpenedStore::of(store)?.backup(file),
        StoreCommand::Restore { file, store } => OpenedStore::of(store)?.restore(file.as_deref()),
    }
}

/// Prints the findings about the store that the settings name, if it exists.
pub(crate) fn check(settings: Settings) -> Result<(), Failure> {
    let data_dir = Path::new(&settings.store.data_dir);
    let is_there = |folder: &Folder| folder.database().exists() || folder.last_good().exists();
    let folder = if data_dir.exists() { Some(Folder::open(data_dir).map_err(refused)?) } else { None };
    let Some(folder) = folder.filter(is_there) else {
        return print(&format!("{}: no store yet; `weir run` makes an empty one\n", data_dir.display()));
    };
    let seal = Arc::new(data_dir::seal(&folder, &settings)?);
    OpenedStore { folder, seal, settings }.check()
}

/// Refuses a store whose resources are no rules of APISIX's family.
fn of_apisix(listing: &Listing) -> Result<(), Failure> {
    if listing.items.iter().any(|item| item.key.kind() == Kind::Entities) {
        let message =
            "the store holds entities of Kong's family: read and write them over its Admin API, for example with decK";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(())
}

/// Prints the findings about resources that a gateway would start with. The summary begins with `place`.
pub(crate) fn check_listing(place: &str, settings: &Settings, listing: Listing) -> Result<(), Failure> {
    let revision = listing.revision;
    let rules = Rules::of_keys(settings, listing.items.iter().map(|item| &item.key));
    match State::first(&rules, listing) {
        Ok((state, ready)) => {
            print_findings(&ready.findings);
            let left_out = match ready.left_out {
                0 => String::new(),
                count => format!("; {} left out", counted(count, "resource")),
            };
            print(&format!("{place}revision {revision}: {}{left_out}\n", state.inventory()))?;
            if ready.left_out > 0 { Err(Failure::Reported) } else { Ok(()) }
        }
        Err(findings) => {
            print_findings(&findings);
            print(&format!("{place}revision {revision} cannot be served\n"))?;
            Err(Failure::Reported)
        }
    }
}

/// The data directory of a store, and its key.
struct OpenedStore {
    folder: Folder,
    seal: Arc<Seal>,
    settings: Settings,
}

impl OpenedStore {
    fn of(args: &StoreArgs) -> Result<Self, Failure> {
        Self::with(args, Folder::open)
    }

    /// Opens a data directory, and creates one that does not exist.
    fn of_new(args: &StoreArgs) -> Result<Self, Failure> {
        Self::with(args, Folder::create)
    }

    fn with(args: &StoreArgs, open: impl FnOnce(&Path) -> Result<Folder, OpenError>) -> Result<Self, Failure> {
        let flags = args.data.assignments().into_iter().collect();
        let settings::Loaded { settings, warnings, .. } = settings::load(&args.settings, flags, false)?;
        print_findings(&warnings);
        let folder = open(Path::new(&settings.store.data_dir)).map_err(refused)?;
        let seal = Arc::new(data_dir::seal(&folder, &settings)?);
        Ok(Self { folder, seal, settings })
    }

    fn read(&self) -> Result<Database, Failure> {
        let path = self.folder.database();
        Database::read_only(&path, Arc::clone(&self.seal))
            .map_err(|error| refused(format!("cannot read {}: {error}", path.display())))
    }

    /// The right to write, unless a gateway holds it.
    fn lock(&self) -> Result<Lock, Failure> {
        self.folder.try_lock().map_err(|error| match error {
            OpenError::InUse(who) => refused(format!("{who}: the gateway is running; use its Admin API, or stop it")),
            error => refused(error),
        })
    }

    fn write(&self) -> Result<(Lock, Database), Failure> {
        let lock = self.lock()?;
        let path = self.folder.database();
        let history = data_dir::history(&self.settings);
        let database = Database::open(&path, Arc::clone(&self.seal), history)
            .map_err(|error| refused(format!("cannot write to {}: {error}", path.display())))?;
        Ok((lock, database))
    }

    fn check(&self) -> Result<(), Failure> {
        let path = self.folder.database();
        let looked = Database::read_only(&path, Arc::clone(&self.seal))
            .and_then(|database| Ok((database.check()?, database.list(None))));
        let (mut faults, listing) = match looked {
            Ok((faults, Ok(listing))) => (faults, Some(listing)),
            // The error of reading is shown only if no fault explains it.
            Ok((faults, Err(error))) if faults.is_empty() => (vec![error.to_string()], None),
            Ok((faults, Err(_))) => (faults, None),
            Err(error) => (vec![error.to_string()], None),
        };
        for fault in &mut faults {
            print_error(&format!("{}: {fault}\n", path.display()));
        }
        if !faults.is_empty() {
            let advice = match LastGood::read(&self.folder.last_good(), &self.seal) {
                Ok(copy) => format!(
                    "`weir store restore` takes the copy of revision {} in its place; a backup may be newer",
                    copy.revision
                ),
                Err(error) => format!("there is no copy of the last good state ({error}): restore a backup"),
            };
            print_error(&format!("{advice}\n"));
            print(&format!("{}: damaged; {}\n", path.display(), counted(faults.len(), "fault")))?;
            return Err(Failure::Reported);
        }
        check_listing(&format!("{}: whole; ", path.display()), &self.settings, listing.unwrap_or_default())
    }

    fn export(&self) -> Result<(), Failure> {
        let listing = self.read()?.list(None).map_err(refused)?;
        of_apisix(&listing)?;
        for key in rules_file::placeholders(&listing.items) {
            print_error(&format!(
                "warning: {key} holds the text ${{{{, which is taken for a variable when the file is read\n"
            ));
        }
        let mut text = Vec::new();
        rules_file::write(&listing.items, &mut text).context("cannot write the resources as YAML")?;
        print(&String::from_utf8_lossy(&text))
    }

    fn import(&self, file: &Path) -> Result<(), Failure> {
        let args = RulesArgs {
            file: file.to_owned(),
            invalid_items: InvalidItemsArg::Refuse,
            strict: false,
            resolve: Vec::new(),
            unsupported_plugins: UnsupportedPluginsArg::Refuse,
        };
        let rules = Rules::new(&args, &self.settings)?;
        let (tree, findings) = rules.tree(&rules.read()?);
        print_findings(&findings);
        let tree = tree.ok_or(Failure::Reported)?;
        let (_lock, mut database) = self.write()?;
        let wanted = rules_file::resources(&tree);
        let before = database.list(None).map_err(refused)?;
        of_apisix(&before)?;
        let change =
            |key: &Key, value: Option<&str>| Change { key: key.clone(), value: value.map(Arc::from), expires: None };
        let kept: HashSet<&Key> = wanted.iter().map(|(key, _)| key).collect();
        let gone = before.items.iter().filter(|item| !kept.contains(&item.key));
        let mut changes: Vec<Change> = gone.map(|item| change(&item.key, None)).collect();
        let known: HashMap<&Key, &str> = before.items.iter().map(|item| (&item.key, &*item.value)).collect();
        let news = wanted.iter().filter(|(key, value)| !known.get(key).is_some_and(|known| same(known, value)));
        changes.extend(news.map(|(key, value)| change(key, Some(value))));
        self.commit(&mut database, before, changes, "import")
    }

    fn rollback(&self, revision: u64) -> Result<(), Failure> {
        let (_lock, mut database) = self.write()?;
        let before = database.list(None).map_err(refused)?;
        let differences = database.difference(before.revision, revision).map_err(refused)?;
        let changes =
            differences.into_iter().map(|Difference { key, new, .. }| Change { key, value: new, expires: None });
        let changes = changes.collect();
        self.commit(&mut database, before, changes, "rollback")
    }

    /// Commits changes, if the result can be served, and prints a summary.
    fn commit(
        &self,
        database: &mut Database,
        before: Listing,
        changes: Vec<Change>,
        author: &str,
    ) -> Result<(), Failure> {
        if changes.is_empty() {
            return print(&format!("no change; revision {}\n", before.revision));
        }
        // No expectations are needed, because this process holds the lock.
        let commit = Commit { changes, author: author.to_owned(), expect: Vec::new() };
        let keys = before.items.iter().map(|item| &item.key).chain(commit.changes.iter().map(|change| &change.key));
        let rules = Rules::of_keys(&self.settings, keys);
        let checked = State::check_alone(&rules, before, &commit);
        let warnings = checked.map_err(Failure::Refused)?;
        print_findings(&warnings);
        let revision = database.change_all(&commit).map_err(refused)?;
        let gone = commit.changes.iter().filter(|change| change.value.is_none()).count();
        print(&format!(
            "revision {revision}: {} written, {gone} deleted\n",
            counted(commit.changes.len() - gone, "resource")
        ))
    }

    fn history(&self, query: &HistoryQuery) -> Result<(), Failure> {
        let mut out = String::new();
        for Recorded { revision, time, author, changes } in self.read()?.history(query).map_err(refused)? {
            let time = time.and_then(|time| jiff::Timestamp::try_from(time).ok());
            let time = time.map_or_else(|| "-".to_owned(), |time| format!("{time:.3}"));
            let _ = writeln!(out, "{revision} {time} {}", author.as_deref().unwrap_or("-"));
            for Difference { key, old, new } in changes {
                let sign = match (old, new) {
                    (None, _) => '+',
                    (_, None) => '-',
                    _ => '~',
                };
                let _ = writeln!(out, "  {sign} {key}");
            }
        }
        print(&out)
    }

    fn diff(&self, from: u64, to: u64) -> Result<(), Failure> {
        let mut out = String::new();
        for Difference { key, old, new } in self.read()?.difference(from, to).map_err(refused)? {
            let _ = writeln!(out, "{key}");
            for (sign, value) in [('-', old), ('+', new)] {
                if let Some(value) = value {
                    let _ = writeln!(out, "{sign} {}", masked(&key, &value));
                }
            }
        }
        print(&out)
    }

    fn backup(&self, file: &Path) -> Result<(), Failure> {
        let revision = self.read()?.backup(file).map_err(refused)?;
        print(&format!("revision {revision} is in {}; its secrets need the key {}\n", file.display(), self.seal.id()))
    }

    fn restore(&self, backup: Option<&Path>) -> Result<(), Failure> {
        let _lock = self.lock()?;
        let path = self.folder.database();
        let beside = self.folder.path().join("restored.db");
        for file in [beside.clone(), beside.with_extension("db-wal"), beside.with_extension("db-shm")] {
            let _ = fs::remove_file(file);
        }
        let revision = match backup {
            Some(file) => {
                let backup = Database::read_only(file, Arc::clone(&self.seal))
                    .map_err(|error| refused(format!("cannot read {}: {error}", file.display())))?;
                let faults = backup.check().map_err(refused)?;
                if let Some(fault) = faults.first() {
                    return Err(refused(format!("{} is damaged as well: {fault}", file.display())));
                }
                backup.backup(&beside).map_err(refused)?
            }
            None => {
                let copy = LastGood::read(&self.folder.last_good(), &self.seal).map_err(refused)?;
                let history = data_dir::history(&self.settings);
                let made = Database::open(&beside, Arc::clone(&self.seal), history);
                made.and_then(|mut database| database.fill(&copy).map(|()| copy.revision)).map_err(refused)?
            }
        };
        // The write-ahead log belongs to the damaged database, and must not be applied to the restored one.
        let kept = (1..).map(|n| format!("damaged-{n}")).find(|name| !path.with_extension(name).exists());
        let kept = path.with_extension(kept.ok_or_else(|| anyhow!("there are too many damaged databases"))?);
        let was_there = path.exists();
        for suffix in ["-wal", "-shm", ""] {
            let with_suffix = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
            match fs::rename(with_suffix(&path), with_suffix(&kept)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(refused(format!("cannot move {} away: {error}", path.display())));
                }
                _ => {}
            }
        }
        fs::rename(&beside, &path)
            .with_context(|| format!("cannot put the restored database at {}", path.display()))?;
        let kept = if was_there { format!("; what was there is kept as {}", kept.display()) } else { String::new() };
        print(&format!("{} is at revision {revision}{kept}\n", path.display()))
    }
}

/// True if two JSON texts have the same value.
fn same(a: &str, b: &str) -> bool {
    let read = |text: &str| serde_json::from_str::<Value>(text);
    a == b || matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
}

/// A value with its secrets masked.
fn masked(key: &Key, value: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(value) else { return value.to_owned() };
    secrets::masked(key.kind(), &mut value);
    value.to_string()
}
