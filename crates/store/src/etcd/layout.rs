//! Where resources lie in etcd: `PREFIX/routes/1`, as APISIX has them.

use std::sync::Arc;

use super::messages::Pair;
use crate::{Item, Key};

/// What stands behind the keys of directories, so that they are there.
const PLACEHOLDERS: [&[u8]; 2] = [b"init_dir", b"init"];

/// The keys of one cluster's resources.
#[derive(Debug)]
pub(super) struct Layout {
    /// With a slash at its end.
    root: String,
}

/// What a key of etcd is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A resource.
    Resource(Key),
    /// APISIX's list of plugins, which a gateway has its own of.
    Plugins,
    /// Something else.
    Foreign,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { root: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// What all keys begin with, the slash included.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The key of a resource.
    pub(super) fn key(&self, key: &Key) -> String {
        format!("{}{key}", self.root)
    }

    /// What all keys in a directory begin with.
    pub(super) fn directory(&self, name: &str) -> String {
        format!("{}{name}/", self.root)
    }

    /// What a key is.
    pub(super) fn place(&self, key: &[u8]) -> Place {
        let Some(rest) = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&self.root)) else {
            return Place::Foreign;
        };
        match rest.parse() {
            Ok(key) => Place::Resource(key),
            Err(_) if rest == "plugins" => Place::Plugins,
            Err(_) => Place::Foreign,
        }
    }

    /// The resource that a pair is; `None` for what is none.
    pub(super) fn item(&self, pair: Pair) -> Option<Item> {
        let Place::Resource(key) = self.place(&pair.key) else { return None };
        if PLACEHOLDERS.contains(&pair.value.as_slice()) {
            return None;
        }
        let value: Arc<str> = match String::from_utf8(pair.value) {
            Ok(text) => text.into(),
            // Must not pass for something else than what was written, so it begins like no JSON.
            Err(error) => format!("\u{fffd}{}", String::from_utf8_lossy(error.as_bytes())).into(),
        };
        Some(Item { key, value, created: pair.create_revision, modified: pair.mod_revision })
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Place};
    use crate::Kind;
    use crate::etcd::messages::Pair;

    #[test]
    fn keys_are_told_apart() {
        let layout = Layout::new("/apisix");
        let resource = |kind, id: &str| Place::Resource(crate::Key::new(kind, id));
        let cases = [
            ("/apisix/routes/1", resource(Kind::Routes, "1")),
            ("/apisix/consumers/jack", resource(Kind::Consumers, "jack")),
            ("/apisix/consumers/jack/credentials/c", resource(Kind::Credentials, "jack/credentials/c")),
            ("/apisix/secrets/vault/1", resource(Kind::Secrets, "vault/1")),
            ("/apisix/plugins", Place::Plugins),
            ("/apisix/routes/", Place::Foreign),
            ("/apisix/data_plane/server_info/x", Place::Foreign),
            ("/apisix2/routes/1", Place::Foreign),
            ("/other", Place::Foreign),
        ];
        for (key, expected) in cases {
            assert_eq!(layout.place(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(layout.place(b"/apisix/routes/\xff"), Place::Foreign);
        assert_eq!(layout.key(&crate::Key::new(Kind::Routes, "1")), "/apisix/routes/1");
    }

    #[test]
    fn placeholders_are_no_resources_and_broken_text_is_no_json() {
        let layout = Layout::new("/a/b/");
        let item = |key: &str, value: &[u8]| {
            layout.item(Pair { key: key.into(), value: value.to_vec(), create_revision: 1, mod_revision: 2 })
        };
        assert_eq!(item("/a/b/routes/1", b"init_dir"), None);
        assert_eq!(item("/a/b/routes/", b"init_dir"), None);
        assert_eq!(item("/a/b/routes/1", b"{}").map(|item| item.value), Some("{}".into()));
        let broken = item("/a/b/routes/1", b"{\"desc\":\"\xff\"}").map(|item| item.value).unwrap_or_default();
        assert!(broken.starts_with('\u{fffd}'), "{broken}");
    }
}
