//! Bounds of references in resources from the Admin API or from etcd. Whoever may write those is not always
//! whoever runs the gateway, with all that its user may read and all hosts that its machine reaches. A rules file on the
//! machine is trusted with these.

use std::path::{Component, Path, PathBuf};

use ureq::http::Uri;
use weir_config::Settings;

/// The lists that the settings give.
#[derive(Debug)]
pub(crate) struct Reach {
    folders: Vec<PathBuf>,
    hosts: Vec<String>,
    environment: Vec<String>,
    data_dir: PathBuf,
}

/// Variables that are settings, with the keys of the Admin API and of the store among them.
const SETTINGS: &str = "WEIR_";

impl Reach {
    pub(crate) fn new(settings: &Settings) -> Self {
        let secrets = &settings.secrets;
        Self {
            folders: secrets.folders.iter().map(PathBuf::from).collect(),
            hosts: secrets.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            environment: secrets.environment.clone(),
            data_dir: PathBuf::from(&settings.store.data_dir),
        }
    }

    /// Checks that a variable may be read.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn variable(&self, name: &str) -> Result<(), String> {
        let fits = |allowed: &String| match allowed.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == allowed,
        };
        match name {
            _ if name.to_ascii_uppercase().starts_with(SETTINGS) => {
                Err(format!("the variable {name} is one of the gateway's own settings, which no reference may read"))
            }
            _ if self.environment.iter().any(fits) => Ok(()),
            _ => Err(format!("the setting secrets.environment does not allow the variable {name}")),
        }
    }

    /// Checks that a Vault may be asked.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn host(&self, uri: &str) -> Result<(), String> {
        let parsed = uri.parse::<Uri>().ok();
        let host = parsed.as_ref().and_then(|uri| Some(uri.host()?.to_ascii_lowercase()));
        let Some((uri, host)) = parsed.as_ref().zip(host) else { return Err(format!("{uri:?} names no host")) };
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
        if self.hosts.iter().any(|allowed| *allowed == host || *allowed == format!("{host}:{port}")) {
            return Ok(());
        }
        Err(format!("the setting secrets.hosts does not allow {host}:{port}"))
    }

    /// Checks that a folder may be read, by its name alone, so that nobody learns whether a forbidden folder exists.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn folder(&self, folder: &Path) -> Result<(), String> {
        let plain = folder.components().all(|part| !matches!(part, Component::ParentDir));
        if plain && self.folders.iter().any(|allowed| folder.starts_with(allowed)) {
            return Ok(());
        }
        Err(format!("the setting secrets.folders does not allow {}", folder.display()))
    }

    /// Checks that a file may be read, by its path without links.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn file(&self, path: &Path) -> Result<(), String> {
        let is_in = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| path.starts_with(folder));
        if self.folders.iter().any(is_in) {
            return Ok(());
        }
        Err("it leads out of the folders that the setting secrets.folders allows".to_owned())
    }

    /// Checks that a file is none of the gateway's own, by its path without links.
    ///
    /// # Errors
    /// The file is the gateway's own.
    pub(crate) fn not_own(&self, path: &Path) -> Result<(), String> {
        match self.data_dir.canonicalize() {
            Ok(own) if path.starts_with(&own) => {
                Err("it lies in the gateway's data directory (store.data_dir), which is never read".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_config::Settings;

    use super::Reach;

    fn reach() -> Reach {
        let mut settings = Settings::default();
        settings.secrets.hosts = vec!["vault.test".into(), "10.0.0.1:8200".into(), "[::1]:8200".into()];
        settings.secrets.environment = vec!["GATEWAY_*".into(), "VAULT_TOKEN".into(), "WEIR_*".into()];
        Reach::new(&settings)
    }

    #[test]
    fn hosts_are_those_that_are_listed() {
        for (uri, allowed) in [
            ("http://vault.test", true),
            ("https://VAULT.test:8200", true),
            ("https://vault.test.evil.test", false),
            ("http://vault.test@evil.test", false),
            ("http://evil.test/vault.test", false),
            ("http://10.0.0.1:8200", true),
            ("http://10.0.0.1", false),
            ("http://[::1]:8200", true),
            ("nonsense", false),
        ] {
            assert_eq!(reach().host(uri).is_ok(), allowed, "{uri}: {:?}", reach().host(uri));
        }
    }

    #[test]
    fn variables_are_those_that_are_listed_and_no_settings() {
        for (name, allowed) in [
            ("GATEWAY_KEY", true),
            ("GATEWAY", false),
            ("VAULT_TOKEN", true),
            ("VAULT_TOKEN_2", false),
            ("PATH", false),
            ("WEIR_ADMIN_KEY", false),
            ("weir_admin_key", false),
        ] {
            assert_eq!(reach().variable(name).is_ok(), allowed, "{name}");
        }
    }
}
