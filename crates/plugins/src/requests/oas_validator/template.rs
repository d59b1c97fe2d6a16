//! Templates of paths, such as `/users/{id}`.

use std::cmp::Ordering;

use crate::requests::request_validation::decode::part_of_path;

/// A template, by the segments of its path.
#[derive(Debug)]
pub(super) struct Template(Box<[Segment]>);

/// A fixed text, then parameters, each with the fixed text behind it.
#[derive(Debug)]
struct Segment {
    lead: Vec<u8>,
    parameters: Vec<(String, Vec<u8>)>,
}

/// Values of the parameters in a path.
pub(super) type Captured<'t> = Vec<(&'t str, Vec<u8>)>;

/// Segments of a path. A slash at the end makes no difference.
pub(super) fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    path.strip_suffix(b"/").unwrap_or(path).split(|byte| *byte == b'/')
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("expected a path that begins with /".to_owned());
        }
        let segment = |segment| Segment::parse(std::str::from_utf8(segment).unwrap_or_default());
        segments(text.as_bytes()).map(segment).collect::<Result<_, _>>().map(Self)
    }

    /// Number of segments.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Names of the parameters.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|segment| &segment.parameters).map(|(name, _)| name.as_str())
    }

    /// The values of the parameters in a path, `None` for a path of another form.
    pub(super) fn captures(&self, path: &[u8]) -> Option<Captured<'_>> {
        let mut captured = Vec::new();
        for (segment, text) in self.0.iter().zip(segments(path)) {
            segment.capture(&part_of_path(text), &mut captured)?;
        }
        Some(captured)
    }

    /// Order of templates: those with fixed segments before those with parameters in the same place.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let ranks = |template: &Self| template.0.iter().map(Segment::rank).collect::<Vec<_>>();
        ranks(self).cmp(&ranks(other))
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.split('{');
        let lead = part_of_path(parts.next().unwrap_or_default().as_bytes());
        let mut parameters: Vec<(String, Vec<u8>)> = Vec::new();
        for part in parts {
            if parameters.last().is_some_and(|(_, tail)| tail.is_empty()) {
                return Err("two parameters have nothing between them".to_owned());
            }
            let (name, tail) = part.split_once('}').ok_or("a parameter has no closing brace")?;
            parameters.push((name.to_owned(), part_of_path(tail.as_bytes())));
        }
        Ok(Self { lead, parameters })
    }

    /// 0 for a fixed text, 2 for a parameter alone, 1 for a mixture.
    fn rank(&self) -> u8 {
        match self.parameters.as_slice() {
            [] => 0,
            [(_, tail)] if self.lead.is_empty() && tail.is_empty() => 2,
            _ => 1,
        }
    }

    /// Takes the values out of a segment. A value ends where the text behind it comes first, and the last one as late as may
    /// be.
    fn capture<'t>(&'t self, text: &[u8], captured: &mut Captured<'t>) -> Option<()> {
        let mut rest = text.strip_prefix(self.lead.as_slice())?;
        for (at, (name, tail)) in self.parameters.iter().enumerate() {
            let is_last = at + 1 == self.parameters.len();
            let length = match is_last {
                true => rest.strip_suffix(tail.as_slice())?.len(),
                false => memchr::memmem::find(rest, tail)?,
            };
            let value = rest.get(..length).filter(|value| !value.is_empty())?;
            captured.push((name, value.to_vec()));
            rest = rest.get(length + tail.len()..)?;
        }
        rest.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::Template;

    #[test]
    fn values_are_taken_out_of_paths() {
        for (template, path, values) in [
            ("/a/{x}", "/a/7", Some(vec!["7"])),
            ("/a/{x}", "/a/7/", Some(vec!["7"])),
            ("/a/{x}", "/a/%2F%7e+", Some(vec!["/~+"])),
            ("/a/{x}", "/b/7", None),
            ("/{from}-{to}.json", "/1-2-3.json", Some(vec!["1", "2-3"])),
            ("/{from}-{to}.json", "/-2.json", None),
            ("/{from}-{to}.json", "/1-2.json.x", None),
            ("/v{n}", "/v12", Some(vec!["12"])),
            ("/", "/", Some(vec![])),
            ("/%C3%A4", "/%c3%a4", Some(vec![])),
        ] {
            let parsed = Template::parse(template).expect("a template");
            let captured = parsed.captures(path.as_bytes());
            let texts = captured.map(|all| all.into_iter().map(|(_, text)| text).collect::<Vec<_>>());
            let expected = values.map(|all| all.into_iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
            assert_eq!(texts, expected, "{template} {path}");
        }
        for wrong in ["a", "/{x", "/{x}{y}"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }
}
