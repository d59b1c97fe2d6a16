//! Query arguments that carry credentials, which logs do not show.

use weir_wire::query;

/// Names of query arguments.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ArgumentNames {
    names: Vec<Box<[u8]>>,
    /// A bit for each byte that a name begins with: it settles most arguments.
    firsts: [u64; 4],
}

/// Text that a log shows in the place of a value. A value that is shorter keeps its length.
const MASK: &[u8] = b"***";

impl ArgumentNames {
    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Adds a name, decoded.
    pub fn add(&mut self, name: &[u8]) {
        let Some(&first) = name.first() else { return };
        if self.names.iter().all(|known| **known != *name) {
            self.names.push(name.into());
            if let Some(word) = self.firsts.get_mut(usize::from(first >> 6)) {
                *word |= 1 << (first & 63);
            }
        }
    }

    /// True when a name, decoded, is among them.
    #[must_use]
    pub fn has(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| **known == *name)
    }

    fn has_argument(&self, argument: &[u8]) -> bool {
        let Some(&first) = argument.first() else { return false };
        let may_be = match first {
            // The first letter is encoded.
            b'%' | b'+' => true,
            first => self.firsts.get(usize::from(first >> 6)).is_some_and(|word| word >> (first & 63) & 1 == 1),
        };
        may_be && self.names.iter().any(|name| query::has_name(argument, name))
    }

    /// True when a query, as received, has one of these arguments.
    #[must_use]
    pub fn are_in(&self, query: &[u8]) -> bool {
        query.split(|b| *b == b'&').any(|argument| self.has_argument(argument))
    }

    /// Masks the values of these arguments in a query, as received; gives the length of what is left of it.
    pub fn mask(&self, query: &mut [u8]) -> usize {
        let (mut from, mut to) = (0, 0);
        while from < query.len() {
            let rest = query.get(from..).unwrap_or_default();
            let len = rest.iter().position(|b| *b == b'&').unwrap_or(rest.len());
            let argument = rest.get(..len).unwrap_or_default();
            let value = match self.has_argument(argument) {
                true => argument.iter().position(|b| *b == b'=').map(|at| at + 1),
                false => None,
            };
            let kept = match value {
                Some(value) => {
                    let masked = MASK.len().min(len - value);
                    if let Some(place) = query.get_mut(from + value..from + value + masked) {
                        place.fill(b'*');
                    }
                    value + masked
                }
                None => len,
            };
            query.copy_within(from..from + kept, to);
            from += len;
            to += kept;
            if from < query.len() {
                query.copy_within(from..=from, to);
                from += 1;
                to += 1;
            }
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::ArgumentNames;

    #[test]
    fn values_are_masked_by_the_decoded_name() {
        let mut names = ArgumentNames::default();
        ["apikey", "jwt", "a b", "", "jwt"].iter().for_each(|name| names.add(name.as_bytes()));
        assert_eq!(names.len(), 3);
        for (query, masked) in [
            ("apikey=s3cret", "apikey=***"),
            ("a=1&apikey=s3cret&b=2", "a=1&apikey=***&b=2"),
            ("apikey=s3cret&apikey=t3cret&", "apikey=***&apikey=***&"),
            ("%61pikey=s3cret&jwt=a.b.c", "%61pikey=***&jwt=***"),
            ("a+b=s3cret&a%20b=s3cret", "a+b=***&a%20b=***"),
            ("apikey=k1&jwt=", "apikey=**&jwt="),
            ("apikey=a=b", "apikey=***"),
            ("apikey&a&jwtx=1&xjwt=2&APIKEY=3", "apikey&a&jwtx=1&xjwt=2&APIKEY=3"),
            ("&&=1", "&&=1"),
            ("", ""),
        ] {
            let mut text = query.as_bytes().to_vec();
            let len = names.mask(&mut text);
            text.truncate(len);
            assert_eq!(String::from_utf8_lossy(&text), masked, "{query}");
            assert_eq!(names.are_in(query.as_bytes()), query.contains("pikey") || query != masked, "{query}");
        }
        assert!(!ArgumentNames::default().are_in(b"apikey=1"));
    }
}
