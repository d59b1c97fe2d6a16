//! The portal of 3scale's family: its configuration as a file in the data directory, which is served like any other file.
//!
//! The file is replaced only by a configuration that can be served. So the last good one outlives a portal that is away or
//! hands out a broken one, and a restart meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use weir_config::Settings;
use weir_config::node::MAX_TEXT_BYTES;
use weir_store::Folder;
use weir_threescale::{Pages, Portal};

use crate::agents::Agents;
use crate::cli::RulesArgs;
use crate::failure::Failure;
use crate::source::rules::Rules;

/// Folder in the data directory.
const FOLDER: &str = "3scale";
/// Name of the file in it.
const FILE: &str = "portal.json";
/// Time limit of a request to the portal.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A configuration without services, until a portal that is loaded lazily has one.
const NOTHING: &str = "{\"services\":[],\"oidc\":[]}";

/// A portal, and the file with its configuration.
#[derive(Clone)]
pub(crate) struct PortalFile {
    portal: Portal,
    path: PathBuf,
    settings: Settings,
    client: Arc<Client>,
}

/// An HTTP client for the portal.
struct Client {
    agents: Agents,
    verify: bool,
}

impl Pages for Client {
    fn get(&self, url: &str, authorization: Option<&str>) -> Result<String, String> {
        let request = self.agents.of(url, self.verify)?.get(url);
        let request = match authorization {
            Some(value) => request.header("Authorization", value),
            None => request,
        };
        let mut response = request.call().map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("status {status}"));
        }
        let body = response.body_mut().with_config().limit(MAX_TEXT_BYTES as u64).read_to_string();
        body.map_err(|error| error.to_string())
    }
}

impl PortalFile {
    /// The portal of the environment, with a configuration that can be served, and a doubt about it; `None` where the
    /// environment names none.
    ///
    /// # Errors
    /// A variable is wrong, the folder cannot be made, or there is no configuration and the portal is not loaded lazily.
    pub(crate) fn open(settings: &Settings) -> Result<Option<(Self, Option<String>)>, Failure> {
        let Some(portal) = Portal::read(&|name| std::env::var(name).ok()).map_err(Failure::Usage)? else {
            return Ok(None);
        };
        let folder = Folder::create(Path::new(&settings.store.data_dir))
            .and_then(|folder| Folder::create(&folder.path().join(FOLDER)))
            .map_err(|error| Failure::Other(anyhow::Error::msg(error)))?;
        let verify =
            !std::env::var("OPENSSL_VERIFY").is_ok_and(|value| matches!(&*value, "0" | "false" | "off" | "no"));
        let client = Client { agents: Agents::new(&settings.tls.trusted_certificate, Some(TIMEOUT)), verify };
        let path = folder.path().join(FILE);
        let file = Self { portal, path, settings: settings.clone(), client: Arc::new(client) };
        let name = file.portal.name();
        let doubt = match file.refresh() {
            Ok(()) => None,
            Err(error) if file.path.exists() => {
                Some(format!("the portal {name} is not used, and its last good configuration is served: {error}"))
            }
            Err(error) if file.portal.is_lazy => {
                put(&file.path, NOTHING).map_err(|error| Failure::Other(anyhow::Error::msg(error)))?;
                Some(format!("the portal {name} has no configuration yet, and nothing is served until it has: {error}"))
            }
            Err(error) => {
                let text = format!("the portal {name} has no configuration (THREESCALE_PORTAL_ENDPOINT): {error}");
                return Err(Failure::Other(anyhow::Error::msg(text)));
            }
        };
        Ok(Some((file, doubt)))
    }

    /// The file as rules.
    pub(crate) fn rules(&self) -> RulesArgs {
        RulesArgs::of(&self.path)
    }

    /// Looks at the portal again and again.
    pub(crate) fn watch(self, runtime: &Handle) {
        let Some(seconds) = self.portal.seconds else { return };
        runtime.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                let file = self.clone();
                let refreshed = tokio::task::spawn_blocking(move || file.refresh()).await;
                if let Ok(Err(error)) = refreshed {
                    let name = self.portal.name();
                    tracing::warn!(portal = name, %error, "the portal is not used: the configuration in force stays");
                }
            }
        });
    }

    /// Replaces the file by what the portal has, if it is another configuration that can be served.
    fn refresh(&self) -> Result<(), String> {
        let text = self.portal.fetch(&*self.client)?;
        if std::fs::read(&self.path).is_ok_and(|known| known == text.as_bytes()) {
            return Ok(());
        }
        let rules = Rules::new(&self.rules(), &self.settings).map_err(|failure| failure.text())?;
        match rules.load(text.as_bytes()).first_error() {
            None => put(&self.path, &text),
            Some(error) => Err(format!("its configuration has errors, of which the first is {error}")),
        }
    }
}

/// Puts a text into a file, which is there as a whole or not at all.
fn put(path: &Path, text: &str) -> Result<(), String> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let new = path.with_extension("new");
    let write = || {
        // The configuration holds secrets.
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().map_err(|error: std::io::Error| format!("cannot write {}: {error}", path.display()))
}
