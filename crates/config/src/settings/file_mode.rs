use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The permissions of a file or a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(u16);

const EXPECTED: &str = "octal permissions as a text: \"0660\"";

impl FileMode {
    /// Permissions for the owner alone.
    pub const OWNER: Self = Self(0o600);
    /// Permissions for everyone, as with a port of the loopback address; nginx and systemd make Unix sockets so.
    pub const EVERYONE: Self = Self(0o666);

    /// The permission bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl Serialize for FileMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:04o}", self.0))
    }
}

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let digits = matches!(text.len(), 3 | 4) && text.bytes().all(|b| b.is_ascii_digit());
        match u16::from_str_radix(&text, 8) {
            Ok(bits @ ..=0o777) if digits => Ok(Self(bits)),
            _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &EXPECTED)),
        }
    }
}

impl JsonSchema for FileMode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FileMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^0?[0-7]{3}$", "x-expected": EXPECTED })
    }
}
