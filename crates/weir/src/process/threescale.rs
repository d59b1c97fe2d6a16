//! 3scale's backend: where its services come from, its thread, and its end.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_config::settings::{Endpoint, ListenAddr, Listener};
use weir_config::{Settings, file};
use weir_plugins::PlanCounts;
use weir_store::{Embedded, Folder, Options, Store};
use weir_threescale_backend::{Backend, Catalog, Leaving, Limits, Login, Source, StoredSecrets, read_file, stored};

use crate::source::watch::{Change, Watch};
use crate::stored::data_dir;

/// Folder of the store in the data directory.
const FOLDER: &str = "threescale";
/// Time for changes that are under way at the end.
const LAST_CHANGES: Duration = Duration::from_secs(2);
/// Connections where file descriptors are scarce.
const LEAST: u64 = 4;

/// A backend that does not serve yet.
#[derive(Debug)]
pub(crate) struct ThreescaleBackend {
    backend: Arc<Backend>,
    limits: Limits,
    kept: Kept,
}

/// The place of services.
#[derive(Debug)]
enum Kept {
    File {
        path: PathBuf,
        watch: Box<Watch>,
    },
    /// `succeeds`: the old process of an upgrade may still write.
    Store {
        store: Arc<Embedded>,
        succeeds: bool,
    },
}

/// Listens with TLS at `APICAST_HTTPS_PORT`, unless the settings say something else.
///
/// # Errors
/// The variable is no port.
pub(crate) fn listen(settings: &mut Settings) -> Result<(), String> {
    let Some(port) = std::env::var("APICAST_HTTPS_PORT").ok().filter(|port| !port.is_empty()) else { return Ok(()) };
    let read = port.parse().ok().filter(|port| *port > 0);
    let port = read.ok_or_else(|| format!("APICAST_HTTPS_PORT: expected a port, found '{port}'"))?;
    if settings.listen.https == Settings::default().listen.https {
        let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        settings.listen.https = vec![Listener::from(ListenAddr::Tcp(address))];
    }
    Ok(())
}

/// The number of connections, of so many file descriptors; 0 for a backend that is off.
pub(crate) fn connections(settings: &Settings, descriptors: Option<u64>) -> usize {
    if settings.listen.threescale_backend == Endpoint::Off {
        return 0;
    }
    let most = descriptors.map_or(u64::MAX, |limit| (limit / 8).max(LEAST));
    u64::from(settings.threescale_backend.connections).min(most) as usize
}

/// Checks the settings and the file of services.
///
/// # Errors
/// Findings about them.
pub(crate) fn check(settings: &Settings) -> anyhow::Result<()> {
    let options = &settings.threescale_backend;
    if settings.listen.threescale_backend == Endpoint::Off {
        return Ok(());
    }
    if options.file.is_empty() && options.internal_password.expose().is_empty() {
        bail!(
            "listen.threescale_backend: set threescale_backend.file, or threescale_backend.internal_password for services \
             that the internal API makes"
        );
    }
    if options.file.is_empty() { Ok(()) } else { read(Path::new(&options.file)).map(drop) }
}

/// Reads the file of services.
fn read(path: &Path) -> anyhow::Result<Catalog> {
    let name = path.display().to_string();
    let text = file::read_text(path).with_context(|| format!("threescale_backend.file: cannot read {name}"))?;
    read_file(&text).map_err(|found| {
        let lines = found.into_iter().map(|fault| fault.in_file(&name).to_string());
        anyhow!("threescale_backend.file: {}", lines.collect::<Vec<_>>().join("\n"))
    })
}

impl ThreescaleBackend {
    /// Reads services and applications; `None` for a backend that is off.
    ///
    /// # Errors
    /// The file is wrong, or the store cannot be opened.
    pub(crate) fn open(
        settings: &Settings,
        counts: &Arc<PlanCounts>,
        connections: usize,
        succeeds: bool,
    ) -> anyhow::Result<Option<Self>> {
        let options = &settings.threescale_backend;
        if settings.listen.threescale_backend == Endpoint::Off {
            return Ok(None);
        }
        let (catalog, source, kept) = match options.file.as_str() {
            "" => {
                check(settings)?;
                let folder = Folder::create(Path::new(&settings.store.data_dir)).map_err(anyhow::Error::msg)?;
                let folder = Folder::create(&folder.path().join(FOLDER)).map_err(anyhow::Error::msg)?;
                let seal = data_dir::seal_of(&folder, settings, Arc::new(StoredSecrets));
                let seal = Arc::new(seal.map_err(|failure| anyhow::Error::msg(failure.text()))?);
                let history = data_dir::history(settings);
                let (store, listing) =
                    Embedded::open(Options { folder, seal, history, succeeds }).map_err(anyhow::Error::msg)?;
                let store = Arc::new(store);
                let catalog = stored(&listing).map_err(anyhow::Error::msg)?;
                (catalog, Source::Store(Arc::clone(&store) as _), Kept::Store { store, succeeds })
            }
            name => {
                let path = PathBuf::from(name);
                // Watched before it is read, so that no change in between is missed.
                let watch = Box::new(Watch::new(&path, &settings.config));
                (read(&path)?, Source::File, Kept::File { path, watch })
            }
        };
        let password = options.internal_password.expose();
        let login = (!password.is_empty())
            .then(|| Login { user: options.internal_user.clone(), password: password.to_owned() });
        let backend = Arc::new(Backend::new(catalog, Arc::clone(counts), source, login));
        let limits = Limits { connections, body: options.body.as_usize() };
        Ok(Some(Self { backend, limits, kept }))
    }

    /// The services and applications.
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Serves until the gateway leaves and everything under way is answered.
    pub(crate) async fn serve(self, listener: TcpListener, mut leaving: Leaving) {
        let Self { backend, limits, kept } = self;
        let (of_server, of_thread) = (Arc::clone(&backend), leaving.clone());
        let served = listener
            .into_std()
            .and_then(|listener| weir_threescale_backend::serve(of_server, listener, limits, of_thread));
        let end = match served {
            Ok(end) => end,
            Err(error) => return tracing::error!(%error, "the backend of 3scale cannot be served"),
        };
        match kept {
            Kept::File { path, watch } => tokio::select! {
                _ = end => {}
                () = follow(&backend, path, *watch) => {}
            },
            Kept::Store { store, succeeds } => {
                if succeeds {
                    catch_up(&backend, &store).await;
                }
                let mut end = end;
                let _ = leaving.wait_for(Option::is_some).await.map(drop);
                let ended = timeout(LAST_CHANGES, &mut end).await;
                // A process that takes over waits for this.
                store.close("the gateway stops").await;
                if ended.is_err() {
                    let _ = end.await;
                }
            }
        }
    }
}

/// Reads what the old process of an upgrade has changed at last.
async fn catch_up(backend: &Backend, store: &Embedded) {
    let listed = match store.settled().await {
        Ok(()) => store.list(None).await,
        Err(error) => Err(error),
    };
    let read = listed.map_err(|error| error.to_string()).and_then(|listing| stored(&listing));
    match read {
        Ok(catalog) => backend.replace(catalog),
        Err(error) => {
            tracing::error!(error, "services of the 3scale backend may lack the last changes of the old process")
        }
    }
}

/// Reads the file again when it has changed, and at SIGHUP. What cannot be read changes nothing.
async fn follow(backend: &Backend, path: PathBuf, mut watch: Watch) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return tracing::error!("cannot catch SIGHUP for threescale_backend.file");
    };
    loop {
        let vanished = tokio::select! {
            change = watch.changed() => matches!(change, Change::Vanished),
            _ = hangup.recv() => false,
        };
        if vanished {
            tracing::error!(path = %path.display(), "threescale_backend.file is gone; its services stay in force");
            continue;
        }
        let of_thread = path.clone();
        match spawn_blocking(move || read(&of_thread)).await {
            Ok(Ok(catalog)) => {
                backend.replace(catalog);
                tracing::info!(path = %path.display(), "services of the 3scale backend are read again");
            }
            Ok(Err(error)) => tracing::error!("{error:#}; the services before stay in force"),
            Err(error) => tracing::error!(%error, "threescale_backend.file was not read"),
        }
    }
}
