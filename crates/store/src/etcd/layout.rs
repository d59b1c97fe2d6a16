//! Keys of resources in etcd: `PREFIX/routes/1`, as in APISIX.

use std::sync::Arc;

use super::messages::Pair;
use crate::{Item, Key};

/// Values that APISIX stores under the keys of directories to make them exist.
const PLACEHOLDERS: [&[u8]; 2] = [b"init_dir", b"init"];

/// Maps resources to keys below one prefix.
#[derive(Debug)]
pub(super) struct Layout {
    /// Prefix with a slash at its end.
    root: String,
}

/// Meaning of a key in etcd.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EtcdKey {
    /// A resource.
    Resource(Key),
    /// APISIX's list of plugins; a gateway has its own list.
    Plugins,
    /// Any other key.
    Foreign,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self { root: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// Prefix of all keys, including the slash.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Key of a resource.
    pub(super) fn key(&self, key: &Key) -> String {
        format!("{}{key}", self.root)
    }

    /// Prefix of all keys in a directory.
    pub(super) fn directory(&self, name: &str) -> String {
        format!("{}{name}/", self.root)
    }

    /// Parses a key.
    pub(super) fn parse(&self, key: &[u8]) -> EtcdKey {
        let Some(rest) = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&self.root)) else {
            return EtcdKey::Foreign;
        };
        match rest.parse() {
            Ok(key) => EtcdKey::Resource(key),
            Err(_) if rest == "plugins" => EtcdKey::Plugins,
            Err(_) => EtcdKey::Foreign,
        }
    }

    /// Resource stored in a pair; `None` if the pair is no resource.
    pub(super) fn item(&self, pair: Pair) -> Option<Item> {
        let EtcdKey::Resource(key) = self.parse(&pair.key) else { return None };
        if PLACEHOLDERS.contains(&pair.value.as_slice()) {
            return None;
        }
        let value: Arc<str> = match String::from_utf8(pair.value) {
            Ok(text) => text.into(),
            // Invalid UTF-8 must not be taken for another valid value, so the text begins with a character that no
            // JSON begins with.
            Err(error) => format!("\u{fffd}{}", String::from_utf8_lossy(error.as_bytes())).into(),
        };
        Some(Item { key, value, created: pair.create_revision, modified: pair.mod_revision })
    }
}

#[cfg(test)]
mod tests {
    use super::{EtcdKey, Layout};
    use crate::Kind;
    use crate::etcd::messages::Pair;

    #[test]
    fn keys_are_parsed() {
        let layout = Layout::new("/apisix");
        let resource = |kind, id: &str| EtcdKey::Resource(crate::Key::new(kind, id));
        let cases = [
            ("/apisix/routes/1", resource(Kind::Routes, "1")),
            ("/apisix/consumers/jack", resource(Kind::Consumers, "jack")),
            ("/apisix/consumers/jack/credentials/c", resource(Kind::Credentials, "jack/credentials/c")),
            ("/apisix/secrets/vault/1", resource(Kind::Secrets, "vault/1")),
            ("/apisix/plugins", EtcdKey::Plugins),
            ("/apisix/routes/", EtcdKey::Foreign),
            ("/apisix/data_plane/server_info/x", EtcdKey::Foreign),
            ("/apisix2/routes/1", EtcdKey::Foreign),
            ("/other", EtcdKey::Foreign),
        ];
        for (key, expected) in cases {
            assert_eq!(layout.parse(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(layout.parse(b"/apisix/routes/\xff"), EtcdKey::Foreign);
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
