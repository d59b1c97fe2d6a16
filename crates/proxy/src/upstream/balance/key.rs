//! Key of a request for consistent hashing.

use weir_config::HashKey;
use weir_expr::{Source, Value};
use weir_plugin::host::Exchange;

/// The hash of a request's key; without the key, of the client's address.
pub(crate) fn hash(key: &HashKey, x: &Exchange, room: &mut Vec<u8>) -> u32 {
    room.clear();
    let hash = match key {
        HashKey::Variable(variable) => x.variable(variable).map(|value| hash_value(&value, room)),
        HashKey::Text(text) if text.has_any(x) => {
            text.render(x, room);
            Some(crc32fast::hash(room))
        }
        HashKey::Text(_) => None,
    };
    hash.unwrap_or_else(|| crc32fast::hash(x.client.addr_text.as_bytes()))
}

fn hash_value(value: &Value<'_>, room: &mut Vec<u8>) -> u32 {
    match value {
        Value::Bytes(bytes) => crc32fast::hash(bytes),
        other => {
            other.write_to(room);
            crc32fast::hash(room)
        }
    }
}
