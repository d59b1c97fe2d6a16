//! Authorities: who issues certificates, for which names, and where they are kept.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_redis::Settings;

/// An authority that issues certificates by ACME (RFC 8555), and what is asked of it.
#[derive(Debug)]
pub struct Authority {
    /// URL of its directory (section 7.1.1).
    pub directory: String,
    /// Address of whoever answers for the certificates.
    pub email: String,
    /// Account elsewhere that the one here belongs to (section 7.3.4): its id, and its key.
    pub external_account: Option<(String, Vec<u8>)>,
    /// Kind of the certificates' keys.
    pub key: KeyKind,
    /// Time before the end of a certificate at which another one is ordered.
    pub renew_before: Duration,
    /// Time after a failed order in which none is made for the same name.
    pub pause: Duration,
    /// Names that certificates are ordered for.
    pub names: Names,
    /// The place where certificates are kept.
    pub place: Place,
}

/// The place where certificates are kept.
#[derive(Debug)]
pub enum Place {
    /// In the memory of this process.
    Memory,
    /// In a folder of this gateway, which outlives the process.
    Folder(PathBuf),
    /// In a Redis, for several gateways.
    Redis(Redis),
}

/// Kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA with 2048 bits.
    Rsa2048,
    /// RSA with 3072 bits.
    Rsa3072,
    /// RSA with 4096 bits.
    Rsa4096,
    /// ECDSA on the curve P-256.
    EcP256,
}

/// A Redis where certificates are kept.
#[derive(Debug)]
pub struct Redis {
    /// The server.
    pub settings: Arc<Settings>,
    /// Beginning of all keys.
    pub namespace: String,
}

/// Names that certificates are ordered for.
#[derive(Debug, Default)]
pub struct Names {
    all: bool,
    exact: HashSet<Box<str>>,
    /// Ends of names, with a dot before them.
    ends: Vec<Box<str>>,
}

impl Names {
    /// All names.
    #[must_use]
    pub fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// The names of a list; `*.example.com` stands for all below `example.com`, at any depth, as in Kong.
    #[must_use]
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut this = Self::default();
        for name in names {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            match name.strip_prefix('*') {
                Some(end) => this.ends.push(end.into()),
                None => {
                    this.exact.insert(name.into());
                }
            }
        }
        this
    }

    /// True for a name, in lower case, that is among them.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all || self.exact.contains(name) || self.ends.iter().any(|end| name.ends_with(&**end))
    }
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn names_are_exact_or_below_another() {
        let names = Names::of(["Example.com", "*.example.org"]);
        for (name, has) in [
            ("example.com", true),
            ("www.example.com", false),
            ("example.org", false),
            ("www.example.org", true),
            ("a.b.example.org", true),
            ("badexample.org", false),
        ] {
            assert_eq!(names.has(name), has, "{name}");
        }
        assert!(Names::all().has("anything"));
        assert!(!Names::default().has("anything"));
    }
}
