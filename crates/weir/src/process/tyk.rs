//! Needs of a `tyk.conf` in the process: its address, and the gateway API with the sessions of keys.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use weir_config::settings::{ListenAddr, Listener};
use weir_config::{ResourceKey, ResourceKind, Settings};
use weir_plugins::PlanCounts;
use weir_plugins::tyk::sessions::Sessions;
use weir_plugins::tyk::{Caches, Door};
use weir_store::{Change, Commit, Embedded, Folder, Options, Store};
use weir_tyk::{GatewayApi, Place, Storage};

use crate::source::rules::Rules;
use crate::stored::data_dir;

/// Folder of the sessions in the data directory.
const FOLDER: &str = "tyk";

/// Listens at the address of a `tyk.conf`, unless the settings say something else.
///
/// # Errors
/// `tyk.conf` cannot be read, or has no address.
pub(crate) fn listen(file: &Path, settings: &mut Settings) -> Result<(), String> {
    let Some(place @ Place::Conf(_)) = Place::of(file) else { return Ok(()) };
    let conf = place.conf()?;
    let address = match conf.listen_address.as_str() {
        "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        text => text.parse().map_err(|_| format!("listen_address: expected an IP address, found '{text}'"))?,
    };
    let listener = |port: u16| Listener::from(ListenAddr::Tcp(SocketAddr::new(address, port)));
    if conf.listen_port > 0 && settings.listen.http == Settings::default().listen.http {
        let traffic = vec![listener(conf.listen_port)];
        match conf.tls {
            // All ports of Tyk speak TLS then.
            Some(_) => (settings.listen.http, settings.listen.https) = (Vec::new(), traffic),
            None => settings.listen.http = traffic,
        }
    }
    // The settings may say where the traffic comes, and never where the gateway API is.
    if conf.control_port > 0 {
        let place = if conf.tls.is_some() { &mut settings.listen.https } else { &mut settings.listen.http };
        place.push(listener(conf.control_port));
    }
    Ok(())
}

/// The gateway API, for the dashboard.
#[derive(Debug)]
pub(crate) struct DashboardDoor {
    pub(crate) door: Arc<Door>,
    pub(crate) secret: String,
}

/// The gateway API for the dashboard; `None` without Tyk's family or without a secret.
///
/// # Errors
/// `tyk.conf` cannot be read.
pub(crate) fn door(rules: &Rules) -> anyhow::Result<Option<DashboardDoor>> {
    let Some(place) = &rules.tyk else { return Ok(None) };
    let conf = place.conf().map_err(anyhow::Error::msg)?;
    let door = || Door::of(rules.compiler.states());
    Ok((!conf.secret.is_empty()).then(|| DashboardDoor { door: door(), secret: conf.secret }))
}

/// Starts the gateway API, and puts stored sessions back. `succeeds`: another process may still hold the store.
///
/// # Errors
/// The store cannot be opened.
pub(crate) fn start(settings: &Settings, rules: &Rules, runtime: &Handle, succeeds: bool) -> anyhow::Result<()> {
    let Some(place) = &rules.tyk else { return Ok(()) };
    let states = rules.compiler.states();
    let sessions = Sessions::of(states);
    let conf = place.conf().map_err(anyhow::Error::msg)?;
    // Without the API there are no sessions to keep, and those in Redis are kept there.
    let storage = match !conf.secret.is_empty() && conf.storage.is_none() {
        true => {
            let stored = StoredSessions::open(settings, runtime.clone(), &sessions, succeeds);
            Some(Arc::new(stored.context("cannot open the store of keys")?) as Arc<dyn Storage>)
        }
        false => None,
    };
    let counts = PlanCounts::of(states, settings.limits.limit_keys as usize);
    let (reloads, handle) = (Arc::clone(&rules.reloads), runtime.clone());
    let reload = Box::new(move |waits: bool| reloads.ask(waits, &handle));
    let stored = (storage, settings.limits.limit_keys as usize);
    let api =
        GatewayApi::new(place, (sessions, counts, Caches::of(states)), stored, reload).map_err(anyhow::Error::msg)?;
    let api = Arc::new(api);
    let door = Door::of(states);
    let blocking = runtime.clone();
    door.open(Arc::clone(&api) as _, Box::new(move |job| drop(blocking.spawn_blocking(job))));
    let mut met = rules.reloads.met();
    runtime.spawn(async move {
        // The door is held for as long as the process serves.
        while met.changed().await.is_ok() {
            let api = Arc::clone(&api);
            let is_live = met.borrow_and_update().1;
            door.reloaded(is_live);
            if is_live {
                drop(tokio::task::spawn_blocking(move || api.reloaded()).await);
            }
        }
    });
    Ok(())
}

/// Sessions in an embedded store of their own.
#[derive(Debug)]
struct StoredSessions {
    store: Embedded,
    runtime: Handle,
}

impl StoredSessions {
    fn open(settings: &Settings, runtime: Handle, sessions: &Sessions, succeeds: bool) -> anyhow::Result<Self> {
        let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(anyhow::Error::msg)?;
        let folder = Folder::create(&folder.path().join(FOLDER)).map_err(anyhow::Error::msg)?;
        let seal = data_dir::seal(&folder, settings).map_err(|failure| anyhow::Error::msg(failure.text()))?;
        let history = data_dir::history(settings);
        let options = Options { folder, seal: Arc::new(seal), history, succeeds };
        let (store, listing) = Embedded::open(options).map_err(anyhow::Error::msg)?;
        for item in listing.items {
            let stored: Value =
                serde_json::from_str(&item.value).with_context(|| format!("{} is no JSON", item.key))?;
            if let (Some(name), Some(value)) = (stored["record"].as_str(), stored["value"].as_str()) {
                sessions.records.put(name, value, stored["ends"].as_u64().unwrap_or_default());
                continue;
            }
            let name = stored["name"].as_str().unwrap_or_default();
            sessions.restore(name, stored["session"].clone(), stored["epoch"].as_u64().unwrap_or_default());
        }
        Ok(Self { store, runtime })
    }

    /// Writes a value of a kind, or removes it. It goes by itself at a second since 1970; 0: never.
    fn commit(&self, kind: &str, name: &str, value: Option<String>, ends: u64) -> Result<(), String> {
        // A name may be any text.
        let id: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let key = ResourceKey::new(ResourceKind::Entities, &format!("{kind}/{id}"));
        let expires = (ends > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(ends));
        let change = Change { key, value: value.map(Into::into), expires };
        let commit = Commit { changes: vec![change], author: "gateway api".to_owned(), expect: Vec::new() };
        self.runtime.block_on(self.store.commit(commit)).map(drop).map_err(|error| error.to_string())
    }
}

/// Kinds of stored values.
const KEYS: &str = "keys";
const RECORDS: &str = "records";

impl Storage for StoredSessions {
    fn put(&self, name: &str, session: &Value, epoch: u64) -> Result<(), String> {
        let stored = json!({ "name": name, "epoch": epoch, "session": session });
        self.commit(KEYS, name, Some(stored.to_string()), 0)
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        self.commit(KEYS, name, None, 0)
    }

    fn put_record(&self, name: &str, value: &str, ends: u64) -> Result<(), String> {
        let stored = json!({ "record": name, "value": value, "ends": ends });
        self.commit(RECORDS, name, Some(stored.to_string()), ends)
    }

    fn remove_record(&self, name: &str) -> Result<(), String> {
        self.commit(RECORDS, name, None, 0)
    }
}
