//! The two forms of a record: MessagePack with the names of the Pump's fields, and BSON with those of its collections.

use rmp::encode;

/// A document that is being written.
pub(super) trait Form {
    /// A text; bytes that are no UTF-8 are replaced.
    fn text(&mut self, name: &str, text: &[u8]);
    /// A whole number.
    fn int(&mut self, name: &str, number: i64);
    /// A number with a fraction.
    fn float(&mut self, name: &str, number: f64);
    /// True or false.
    fn flag(&mut self, name: &str, flag: bool);
    /// A time in milliseconds since 1970.
    fn time(&mut self, name: &str, unix_ms: u64);
    /// A list of so many texts, each with a prefix.
    fn texts<'t>(&mut self, name: &str, count: usize, texts: &mut dyn Iterator<Item = (&'t str, &'t str)>);
    /// A document with so many fields.
    fn nested(&mut self, name: &str, fields: u32, write: &mut dyn FnMut(&mut dyn Form));
}

/// MessagePack, as Tyk's gateway writes it: a map, and times as lists of seconds and nanoseconds.
pub(super) struct Msgpack<'o>(&'o mut Vec<u8>);

impl<'o> Msgpack<'o> {
    /// A map with so many fields.
    pub(super) fn begin(out: &'o mut Vec<u8>, fields: u32) -> Self {
        // Writing to a vector does not fail.
        encode::write_map_len(out, fields).ok();
        Self(out)
    }

    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        encode::write_str(self.0, name).ok();
        self.0
    }
}

impl Form for Msgpack<'_> {
    fn text(&mut self, name: &str, text: &[u8]) {
        encode::write_str(self.name(name), &String::from_utf8_lossy(text)).ok();
    }

    fn int(&mut self, name: &str, number: i64) {
        encode::write_sint(self.name(name), number).ok();
    }

    fn float(&mut self, name: &str, number: f64) {
        encode::write_f64(self.name(name), number).ok();
    }

    fn flag(&mut self, name: &str, flag: bool) {
        encode::write_bool(self.name(name), flag).ok();
    }

    fn time(&mut self, name: &str, unix_ms: u64) {
        let out = self.name(name);
        encode::write_array_len(out, 2).ok();
        encode::write_sint(out, (unix_ms / 1000).cast_signed()).ok();
        encode::write_sint(out, (unix_ms % 1000 * 1_000_000).cast_signed()).ok();
    }

    fn texts<'t>(&mut self, name: &str, count: usize, texts: &mut dyn Iterator<Item = (&'t str, &'t str)>) {
        let out = self.name(name);
        encode::write_array_len(out, count as u32).ok();
        for (prefix, text) in texts.take(count) {
            encode::write_str_len(out, (prefix.len() + text.len()) as u32).ok();
            out.extend_from_slice(prefix.as_bytes());
            out.extend_from_slice(text.as_bytes());
        }
    }

    fn nested(&mut self, name: &str, fields: u32, write: &mut dyn FnMut(&mut dyn Form)) {
        write(&mut Msgpack::begin(self.name(name), fields));
    }
}

/// BSON (bsonspec.org, version 1.1), with names in small letters, as the Pump's driver writes them.
pub(super) struct Bson<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Bson<'o> {
    /// A document, of which [`end`](Self::end) writes the length.
    pub(super) fn begin(out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        Self { out, start }
    }

    pub(super) fn end(self) {
        self.out.push(0);
        let length = (self.out.len() - self.start) as u32;
        if let Some(room) = self.out.get_mut(self.start..self.start + 4) {
            room.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// The id of a document: the second, and random bytes.
    pub(super) fn id(&mut self, unix_ms: u64) {
        self.name(0x07, "_id");
        self.out.extend_from_slice(&((unix_ms / 1000) as u32).to_be_bytes());
        self.out.extend_from_slice(&fastrand::u64(..).to_be_bytes());
    }

    fn name(&mut self, kind: u8, name: &str) {
        self.out.push(kind);
        // The one name that a tag of the Pump's gives its capital.
        match name {
            "ExpireAt" => self.out.extend_from_slice(b"expireAt"),
            name => self.out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase())),
        }
        self.out.push(0);
    }

    fn value(&mut self, parts: &[&str]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32 + 1;
        self.out.extend_from_slice(&length.to_le_bytes());
        parts.iter().for_each(|part| self.out.extend_from_slice(part.as_bytes()));
        self.out.push(0);
    }
}

impl Form for Bson<'_> {
    fn text(&mut self, name: &str, text: &[u8]) {
        self.name(0x02, name);
        self.value(&[&String::from_utf8_lossy(text)]);
    }

    fn int(&mut self, name: &str, number: i64) {
        self.name(0x12, name);
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn float(&mut self, name: &str, number: f64) {
        self.name(0x01, name);
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn flag(&mut self, name: &str, flag: bool) {
        self.name(0x08, name);
        self.out.push(u8::from(flag));
    }

    fn time(&mut self, name: &str, unix_ms: u64) {
        self.name(0x09, name);
        self.out.extend_from_slice(&unix_ms.to_le_bytes());
    }

    fn texts<'t>(&mut self, name: &str, count: usize, texts: &mut dyn Iterator<Item = (&'t str, &'t str)>) {
        self.name(0x04, name);
        let mut list = Bson::begin(self.out);
        for (at, (prefix, text)) in texts.take(count).enumerate() {
            list.name(0x02, &at.to_string());
            list.value(&[prefix, text]);
        }
        list.end();
    }

    fn nested(&mut self, name: &str, _: u32, write: &mut dyn FnMut(&mut dyn Form)) {
        self.name(0x03, name);
        let mut inner = Bson::begin(self.out);
        write(&mut inner);
        inner.end();
    }
}

#[cfg(test)]
mod tests {
    use super::{Bson, Form, Msgpack};

    fn write(form: &mut dyn Form) {
        form.text("Method", b"GET");
        form.time("TimeStamp", 1_700_000_000_250);
        form.texts("Tags", 2, &mut [("key-", "k"), ("", "b")].into_iter());
        form.nested("Latency", 1, &mut |inner| inner.int("Total", 300));
        form.flag("TrackPath", true);
        form.time("ExpireAt", 1);
    }

    #[test]
    fn a_record_has_the_bytes_that_the_formats_say() {
        let mut out = Vec::new();
        write(&mut Msgpack::begin(&mut out, 6));
        let expected: &[&[u8]] = &[
            b"\x86\xa6Method\xa3GET\xa9TimeStamp\x92\xce\x65\x53\xf1\x00\xce\x0e\xe6\xb2\x80",
            b"\xa4Tags\x92\xa5key-k\xa1b\xa7Latency\x81\xa5Total\xcd\x01\x2c\xa9TrackPath\xc3\xa8ExpireAt\x92\x00\xce\x00\x0f\x42\x40",
        ];
        assert_eq!(out, expected.concat());
        out.clear();
        let mut document = Bson::begin(&mut out);
        write(&mut document);
        document.end();
        let (length, rest) = out.split_first_chunk::<4>().expect("a length");
        assert_eq!(u32::from_le_bytes(*length) as usize, out.len());
        assert!(rest.starts_with(b"\x02method\0\x04\0\0\0GET\0\x09timestamp\0"), "{out:x?}");
        assert!(rest.ends_with(b"\x08trackpath\0\x01\x09expireAt\0\x01\0\0\0\0\0\0\0\0"), "{out:x?}");
        let tags = b"\x04tags\0\x1b\0\0\0\x020\0\x06\0\0\0key-k\0\x021\0\x02\0\0\0b\0\0";
        assert!(out.windows(tags.len()).any(|window| window == tags), "{out:x?}");
    }
}
