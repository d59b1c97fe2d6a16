//! Finding a consumer by a credential.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq;
use weir_config::Code;
use weir_plugin::{AuthChange, AuthEntry, ConsumerMatch, Invalid};

/// Credentials by what names them: an API key, or a user name that has a secret beside it; `X` is what belongs to it
/// otherwise.
///
/// They are spread over pieces by the hash of their names. A copy of the table shares the pieces, and a change copies
/// the one it concerns: one among a million costs some microseconds. All texts of a piece lie in one arena, so that a
/// credential takes some 30 bytes beside its texts.
///
/// Looking up takes a time that tells nothing of the credentials held: the hash is keyed with a random seed, and the
/// final comparison takes constant time.
#[derive(Debug, Clone)]
pub(crate) struct CredentialTable<X = ()> {
    /// A power of two of them.
    pieces: Vec<Arc<Piece<X>>>,
    count: usize,
    seed: foldhash::quality::RandomState,
}

/// Credentials that a piece is made for, and most that it may hold on average.
const PIECE: usize = 256;
const CROWDED: usize = 4 * PIECE;

#[derive(Debug, Clone)]
struct Piece<X> {
    texts: Vec<u8>,
    entries: Vec<Entry<X>>,
    index: HashTable<u32>,
}

#[derive(Debug, Clone)]
struct Entry<X> {
    /// Offset of the name in `texts`; the secret follows it.
    start: u32,
    name_len: u32,
    secret_len: u32,
    who: ConsumerMatch,
    more: X,
}

/// The target of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found<'a, X> {
    pub(crate) who: ConsumerMatch,
    pub(crate) name: &'a [u8],
    pub(crate) secret: &'a [u8],
    pub(crate) more: &'a X,
    pub(crate) at: CredentialAt,
}

/// The location of a credential in one state of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CredentialAt {
    piece: u32,
    entry: u32,
}

#[cfg(test)]
impl CredentialAt {
    pub(crate) fn numbered(entry: usize) -> Self {
        Self { piece: 0, entry: entry as u32 }
    }
}

/// Reasons for leaving out a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The name is held already, for this one.
    Duplicate(ConsumerMatch),
    /// The texts of a piece have more than 4 GiB.
    Full,
}

impl<X: Clone> CredentialTable<X> {
    pub(crate) fn with_capacity(credentials: usize) -> Self {
        let pieces = credentials.div_ceil(PIECE).next_power_of_two();
        let room = credentials.div_ceil(pieces);
        let piece = || Arc::new(Piece::with_capacity(room + room / 4));
        Self { pieces: std::iter::repeat_with(piece).take(pieces).collect(), count: 0, seed: Default::default() }
    }

    pub(crate) fn insert(&mut self, name: &[u8], secret: &[u8], who: ConsumerMatch, more: X) -> Result<(), Refused> {
        if self.count >= CROWDED * self.pieces.len() {
            self.spread()?;
        }
        let hash = self.seed.hash_one(name);
        let Self { pieces, seed, .. } = self;
        let at = piece_of(hash, pieces.len());
        let Some(piece) = pieces.get_mut(at) else { return Err(Refused::Full) };
        if let Some(known) = piece.entry(hash, name) {
            return Err(Refused::Duplicate(known.who));
        }
        Arc::make_mut(piece).insert(seed, hash, name, secret, who, more)?;
        self.count += 1;
        Ok(())
    }

    /// Takes a credential out, if it is that of `who`.
    pub(crate) fn remove(&mut self, name: &[u8], who: ConsumerMatch) {
        let hash = self.seed.hash_one(name);
        let Self { pieces, seed, .. } = self;
        let at = piece_of(hash, pieces.len());
        let Some(piece) = pieces.get_mut(at) else { return };
        if piece.entry(hash, name).is_none_or(|entry| entry.who != who) {
            return;
        }
        let mut left = Piece::with_capacity(piece.entries.len());
        for entry in &piece.entries {
            let held = entry.name(&piece.texts);
            if held != name {
                let secret = entry.secret(&piece.texts);
                // An entry that was taken in once fits again.
                let _ = left.insert(seed, seed.hash_one(held), held, secret, entry.who, entry.more.clone());
            }
        }
        *piece = Arc::new(left);
        self.count -= 1;
    }

    /// Spreads the credentials over more pieces.
    fn spread(&mut self) -> Result<(), Refused> {
        let mut spread = Self { seed: self.seed.clone(), ..Self::with_capacity(self.count * 2) };
        for piece in &self.pieces {
            for entry in &piece.entries {
                let (name, secret) = (entry.name(&piece.texts), entry.secret(&piece.texts));
                spread.insert(name, secret, entry.who, entry.more.clone())?;
            }
        }
        *self = spread;
        Ok(())
    }

    /// The credential with this name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<Found<'_, X>> {
        let hash = self.seed.hash_one(name);
        let at = piece_of(hash, self.pieces.len());
        let piece = self.pieces.get(at)?;
        self.get(CredentialAt { piece: at as u32, entry: piece.position(hash, name)? })
    }

    /// The credential that stands there.
    pub(crate) fn get(&self, at: CredentialAt) -> Option<Found<'_, X>> {
        let piece = self.pieces.get(at.piece as usize)?;
        let entry = piece.entries.get(at.entry as usize)?;
        let (name, secret) = (entry.name(&piece.texts), entry.secret(&piece.texts));
        Some(Found { who: entry.who, name, secret, more: &entry.more, at })
    }
}

/// By the upper half of the hash: tables of hashbrown use the ends.
fn piece_of(hash: u64, pieces: usize) -> usize {
    (hash >> 24) as usize & (pieces - 1)
}

impl<X> Piece<X> {
    fn with_capacity(credentials: usize) -> Self {
        Self {
            texts: Vec::new(),
            entries: Vec::with_capacity(credentials),
            index: HashTable::with_capacity(credentials),
        }
    }

    fn insert(
        &mut self,
        seed: &foldhash::quality::RandomState,
        hash: u64,
        name: &[u8],
        secret: &[u8],
        who: ConsumerMatch,
        more: X,
    ) -> Result<(), Refused> {
        let fits = |len: usize| u32::try_from(len).map_err(|_| Refused::Full);
        let (start, name_len, secret_len) = (fits(self.texts.len())?, fits(name.len())?, fits(secret.len())?);
        fits(self.texts.len() + name.len() + secret.len())?;
        let at = fits(self.entries.len())?;
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(secret);
        self.entries.push(Entry { start, name_len, secret_len, who, more });
        let Self { texts, entries, index } = self;
        let name_of = |at: &u32| entries.get(*at as usize).map_or(&[][..], |entry| entry.name(texts));
        index.insert_unique(hash, at, |at| seed.hash_one(name_of(at)));
        Ok(())
    }

    fn entry(&self, hash: u64, name: &[u8]) -> Option<&Entry<X>> {
        self.entries.get(self.position(hash, name)? as usize)
    }

    fn position(&self, hash: u64, name: &[u8]) -> Option<u32> {
        let same = |at: &u32| {
            let held = self.entries.get(*at as usize).map(|entry| entry.name(&self.texts));
            held.is_some_and(|held| held.ct_eq(name).into())
        };
        self.index.find(hash, same).copied()
    }
}

impl<X> Entry<X> {
    fn name<'a>(&self, texts: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        texts.get(start..start + self.name_len as usize).unwrap_or_default()
    }

    fn secret<'a>(&self, texts: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize + self.name_len as usize;
        texts.get(start..start + self.secret_len as usize).unwrap_or_default()
    }
}

/// The table after a change: `name_of` is what a configuration is found by, `put` takes one in.
pub(crate) fn changed<C: DeserializeOwned + JsonSchema + 'static, X: Clone + Send + Sync + 'static>(
    change: &AuthChange<'_, C>,
    held: Option<&CredentialTable<X>>,
    name_of: impl Fn(&C) -> &str,
    put: impl Fn(&mut CredentialTable<X>, &AuthEntry<C>) -> Result<Result<(), Refused>, Invalid>,
    (field, what): (&str, &'static str),
) -> Result<CredentialTable<X>, (usize, Invalid)> {
    let mut table = held.cloned().unwrap_or_else(|| CredentialTable::with_capacity(change.came.len()));
    // An entry that cannot be read was never taken in.
    for entry in change.gone.iter().flatten() {
        table.remove(name_of(&entry.conf).as_bytes(), entry.who);
    }
    for (at, entry) in change.came.iter().enumerate() {
        let entry = entry.map_err(|fault| (at, fault))?;
        let taken = put(&mut table, &entry).map_err(|fault| (at, fault))?;
        taken.map_err(|refused| {
            let code = match refused {
                Refused::Duplicate(other) => {
                    let (one, other) = (change.name_of(other).to_owned(), change.name_of(entry.who).to_owned());
                    Code::SameCredential { one, other, what }
                }
                Refused::Full => Code::PluginRule { text: "the credentials have more than 4 GiB".into() },
            };
            (at, Invalid::coded(field, code))
        })?;
    }
    Ok(table)
}

/// The same for credentials that are a text alone, without a secret beside it.
pub(crate) fn changed_texts<C: DeserializeOwned + JsonSchema + 'static>(
    change: &AuthChange<'_, C>,
    text_of: impl Fn(&C) -> &str + Copy,
    (field, what): (&'static str, &'static str),
) -> Result<CredentialTable, (usize, Invalid)> {
    let put = |table: &mut CredentialTable, entry: &AuthEntry<C>| {
        let text = text_of(&entry.conf);
        super::check_credential(text).map_err(|message| Invalid::new(field, message))?;
        Ok(table.insert(text.as_bytes(), b"", entry.who, ()))
    };
    changed(change, change.held(), text_of, put, (field, what))
}

/// True if `given` is the secret. The time depends on the length of `given` alone, which its sender knows.
pub(crate) fn same_secret(given: &[u8], secret: &[u8]) -> bool {
    let mut same = subtle::Choice::from(u8::from(given.len() == secret.len()));
    // The byte beyond an empty secret: the lengths differ then, or there is nothing to compare.
    let padded = secret.iter().chain(secret.is_empty().then_some(&0)).cycle();
    for (given, held) in given.iter().zip(padded) {
        same &= given.ct_eq(held);
    }
    same.into()
}

/// True if a value says where a credential is kept, and is none itself.
pub(crate) fn is_reference(value: &str) -> bool {
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
            table.insert(name.as_bytes(), secret.as_bytes(), who(n as u32), ()).unwrap();
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
        assert_eq!(table.insert(b"jill", b"x", who(9), ()), Err(Refused::Duplicate(who(1))));
    }

    #[test]
    fn a_change_leaves_other_copies_as_they_are() {
        let name = |n: u32| format!("key-{n}");
        let mut table = CredentialTable::with_capacity(10);
        // More than one piece takes, so that they are spread.
        for n in 0..3000 {
            table.insert(name(n).as_bytes(), b"", who(n), n).unwrap();
        }
        assert!(table.pieces.len() > 1);
        let before = table.clone();
        table.remove(b"key-7", who(8));
        assert!(table.find(b"key-7").is_some(), "that of another stays");
        table.remove(b"key-7", who(7));
        table.remove(b"no key", who(7));
        table.insert(b"key-new", b"", who(7), 7).unwrap();
        for (held, gone, new) in [(&before, true, false), (&table, false, true)] {
            assert_eq!(held.find(b"key-7").is_some(), gone);
            assert_eq!(held.find(b"key-new").is_some(), new);
            for n in (0..3000).filter(|n| *n != 7) {
                let found = held.find(name(n).as_bytes()).unwrap();
                assert_eq!((found.who, *found.more, held.get(found.at).map(|f| f.who)), (who(n), n, Some(who(n))));
            }
        }
        assert_eq!((before.count, table.count), (3000, 3000));
        let shared = before.pieces.iter().zip(&table.pieces).filter(|(a, b)| std::sync::Arc::ptr_eq(a, b));
        assert!(shared.count() >= table.pieces.len() - 2);
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
