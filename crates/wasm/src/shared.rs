//! Data that filters of the same name share, over all workers and requests.
#![allow(
    clippy::disallowed_types,
    reason = "held for a few copies of at most some KiB, only by filters that share data"
)]

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::host::{Done, Status};

/// Most bytes of names and values that filters of one name share.
const MOST: usize = 1 << 20;

/// A value, and the number of its last change.
type Value = (Vec<u8>, u32);

#[derive(Default)]
struct Shared {
    values: HashMap<Vec<u8>, Value>,
    bytes: usize,
}

static SHARED: LazyLock<Mutex<HashMap<&'static str, Shared>>> = LazyLock::new(Mutex::default);

/// The value under a name, and the number of its last change.
pub(crate) fn get(filter: &'static str, name: &[u8]) -> Done<Value> {
    let all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(filter).and_then(|shared| shared.values.get(name)).cloned().ok_or(Status::NotFound.into())
}

/// Sets a value. With another `change` than 0 and than the number of the last change nothing is set.
pub(crate) fn set(filter: &'static str, name: Vec<u8>, value: Vec<u8>, change: u32) -> Done {
    let mut all = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = all.entry(filter).or_default();
    let (before, last) = shared.values.get(&name).map_or((0, 0), |(value, last)| (name.len() + value.len(), *last));
    if change != 0 && change != last {
        return Err(Status::CasMismatch.into());
    }
    let bytes = shared.bytes - before + name.len() + value.len();
    if bytes > MOST {
        return Err(Status::InternalFailure.into());
    }
    shared.bytes = bytes;
    shared.values.insert(name, (value, last.wrapping_add(1).max(1)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MOST, get, set};

    #[test]
    fn values_are_bounded_and_changed_by_comparison() {
        let value = || get("test", b"a").ok();
        assert_eq!(value(), None);
        assert!(set("test", b"a".to_vec(), b"1".to_vec(), 0).is_ok());
        assert_eq!(value(), Some((b"1".to_vec(), 1)));
        assert!(set("test", b"a".to_vec(), b"2".to_vec(), 7).is_err());
        assert!(set("test", b"a".to_vec(), b"2".to_vec(), 1).is_ok());
        assert_eq!(value(), Some((b"2".to_vec(), 2)));
        assert!(get("other", b"a").is_err());
        assert!(set("test", b"b".to_vec(), vec![0; MOST], 0).is_err());
        assert!(set("test", b"b".to_vec(), vec![0; MOST - 3], 0).is_ok());
        assert!(set("test", b"c".to_vec(), Vec::new(), 0).is_err());
        assert!(set("test", b"b".to_vec(), Vec::new(), 0).is_ok());
        assert!(set("test", b"c".to_vec(), Vec::new(), 0).is_ok());
    }
}
