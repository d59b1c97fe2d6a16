//! Finding a consumer by a credential.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use subtle::ConstantTimeEq;
use weir_plugin::ConsumerMatch;

/// Credentials by what names them: an API key, or a user name that has a secret beside it.
///
/// All texts lie in one arena, so that a million of them are four allocations and some 30 bytes each beside the text.
///
/// Looking up takes a time that tells nothing of the credentials held: the hash is keyed with a random seed, and the
/// final comparison takes constant time.
#[derive(Debug, Default)]
pub(super) struct CredentialTable {
    texts: Vec<u8>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    seed: foldhash::quality::RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where the name begins in `texts`; the secret follows it.
    start: u32,
    name_len: u32,
    secret_len: u32,
    who: ConsumerMatch,
}

/// What a name leads to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) who: ConsumerMatch,
    pub(super) secret: &'a [u8],
    /// Which it was to be inserted, from 0.
    pub(super) at: usize,
}

/// Why a credential was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The name is held already, by the credential that was the n-th to be inserted.
    Duplicate(usize),
    /// All texts together have more than 4 GiB.
    Full,
}

impl CredentialTable {
    pub(super) fn with_capacity(credentials: usize) -> Self {
        Self {
            entries: Vec::with_capacity(credentials),
            index: HashTable::with_capacity(credentials),
            ..Self::default()
        }
    }

    pub(super) fn insert(&mut self, name: &[u8], secret: &[u8], who: ConsumerMatch) -> Result<(), Refused> {
        let hash = self.seed.hash_one(name);
        if let Some(known) = self.position(hash, name) {
            return Err(Refused::Duplicate(known));
        }
        let fits = |len: usize| u32::try_from(len).map_err(|_| Refused::Full);
        let entry =
            Entry { start: fits(self.texts.len())?, name_len: fits(name.len())?, secret_len: fits(secret.len())?, who };
        fits(self.texts.len() + name.len() + secret.len())?;
        let at = fits(self.entries.len())?;
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(secret);
        self.entries.push(entry);
        let Self { texts, entries, index, seed } = self;
        let name_of = |at: &u32| entries.get(*at as usize).map_or(&[][..], |entry| entry.name(texts));
        index.insert_unique(hash, at, |at| seed.hash_one(name_of(at)));
        Ok(())
    }

    /// The credential with this name.
    pub(super) fn find(&self, name: &[u8]) -> Option<Found<'_>> {
        self.get(self.position(self.seed.hash_one(name), name)?)
    }

    /// The credential that was the n-th to be inserted.
    pub(super) fn get(&self, at: usize) -> Option<Found<'_>> {
        let entry = self.entries.get(at)?;
        let start = entry.start as usize + entry.name_len as usize;
        let secret = self.texts.get(start..start + entry.secret_len as usize)?;
        Some(Found { who: entry.who, secret, at })
    }

    fn position(&self, hash: u64, name: &[u8]) -> Option<usize> {
        let same = |at: &u32| {
            let held = self.entries.get(*at as usize).map(|entry| entry.name(&self.texts));
            held.is_some_and(|held| held.ct_eq(name).into())
        };
        self.index.find(hash, same).map(|at| *at as usize)
    }
}

impl Entry {
    fn name(self, texts: &[u8]) -> &[u8] {
        let start = self.start as usize;
        texts.get(start..start + self.name_len as usize).unwrap_or_default()
    }
}

/// Whether `given` is the secret. The time depends on the length of `given` alone, which its sender knows.
pub(super) fn same_secret(given: &[u8], secret: &[u8]) -> bool {
    let mut same = subtle::Choice::from(u8::from(given.len() == secret.len()));
    // The byte beyond an empty secret: the lengths differ then, or there is nothing to compare.
    let padded = secret.iter().chain(secret.is_empty().then_some(&0)).cycle();
    for (given, held) in given.iter().zip(padded) {
        same &= given.ct_eq(held);
    }
    same.into()
}

/// Where a value stands that this gateway cannot read yet, rather than a credential.
pub(super) fn is_reference(value: &str) -> bool {
    ["$secret://", "$env://"]
        .iter()
        .any(|scheme| value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
}

#[cfg(test)]
mod tests {
    use super::{CredentialTable, Refused, is_reference, same_secret};
    use weir_plugin::ConsumerMatch;

    fn who(consumer: u32) -> ConsumerMatch {
        ConsumerMatch { consumer, credential: None }
    }

    #[test]
    fn credentials_are_found_by_name() {
        let mut table = CredentialTable::with_capacity(2);
        for (n, (name, secret)) in [("jack", "one"), ("jill", ""), ("", "empty"), ("jac", "two")].iter().enumerate() {
            table.insert(name.as_bytes(), secret.as_bytes(), who(n as u32)).unwrap();
        }
        for (name, found) in [
            ("jack", Some((0, "one"))),
            ("jill", Some((1, ""))),
            ("", Some((2, "empty"))),
            ("jac", Some((3, "two"))),
            ("jackone", None),
            ("JACK", None),
        ] {
            let got = table.find(name.as_bytes()).map(|f| (f.who.consumer, std::str::from_utf8(f.secret).unwrap()));
            assert_eq!(got, found, "{name}");
        }
        assert_eq!(table.insert(b"jill", b"x", who(9)), Err(Refused::Duplicate(1)));
    }

    #[test]
    fn secrets_are_compared_whole() {
        for (given, secret, same) in [
            ("", "", true),
            ("a", "", false),
            ("", "a", false),
            ("\0", "", false),
            ("secret", "secret", true),
            ("secre", "secret", false),
            ("secretsecret", "secret", false),
            ("secreT", "secret", false),
        ] {
            assert_eq!(same_secret(given.as_bytes(), secret.as_bytes()), same, "{given:?} {secret:?}");
        }
    }

    #[test]
    fn references_are_told_from_credentials() {
        for (value, reference) in [
            ("$env://KEY", true),
            ("$ENV://KEY", true),
            ("$secret://vault/1/k", true),
            ("$env", false),
            ("é$env://", false),
        ] {
            assert_eq!(is_reference(value), reference, "{value}");
        }
    }
}
