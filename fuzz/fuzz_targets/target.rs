//! Request targets: a normalised path has one form, contains nothing that a later recipient could resolve again, and
//! is unchanged by a second normalisation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_wire::query;
use weir_wire::target::{Form, PathRules, encode_query, is_normal, normalise, split};

fuzz_target!(|data: &[u8]| {
    let Ok(target) = split(data) else { return };
    let path = target.path.map(|span| span.of(data));
    assert_eq!(target.authority.is_some(), target.form == Form::Absolute);
    if let Some(query) = target.query.map(|span| span.of(data)) {
        let mut encoded = Vec::new();
        encode_query(query, &mut encoded);
        assert_eq!(target.query_clean, encoded == query, "a query is clean when encoding changes nothing");
        let mut decoded = Vec::new();
        query::decode(query, &mut decoded);
        for pair in query.split(|b| *b == b'&') {
            let mut name = Vec::new();
            query::decode(query::name(pair), &mut name);
            assert!(query::find(query, &decoded, &name).is_some());
        }
    }
    let Some(path) = path else { return };
    assert_eq!(path[0], b'/');
    for bits in 0..8 {
        let rules =
            PathRules { delete_tail_slash: bits & 1 != 0, servlet: bits & 2 != 0, keep_encoded_slash: bits & 4 != 0 };
        one_form(path, rules, target.normal);
    }
});

fn one_form(path: &[u8], rules: PathRules, normal: bool) {
    let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
    let outcome = normalise(path, rules, &mut decoded, &mut encoded);
    if normal {
        assert_eq!(outcome, Ok(()), "a path in normal form was refused");
        assert!(rules.delete_tail_slash || (decoded == path && encoded == path));
    }
    if outcome.is_err() {
        return;
    }
    let segments: Vec<&[u8]> = decoded.split(|b| *b == b'/').collect();
    assert!(segments.len() >= 2 && segments[0].is_empty(), "begins with a slash");
    for (at, segment) in segments.iter().enumerate().skip(1) {
        assert!(!segment.is_empty() || at == segments.len() - 1, "an empty segment inside");
        assert!(*segment != b"." && *segment != b"..", "a dot segment");
        let bare = segment.split(|b| *b == b';').next().unwrap_or_default();
        assert!(!segment.contains(&b';') || (bare != b"." && bare != b".."), "a dot segment behind parameters");
        assert!(!segment.contains(&0) && (!rules.servlet || !segment.contains(&b';')));
    }
    assert!(!rules.delete_tail_slash || decoded.len() == 1 || decoded.last() != Some(&b'/'));
    assert!(encoded.iter().all(|b| matches!(b, 0x21..=0x7e) && !b"?#\"<>\\^`{|}".contains(b)), "sent in a URI's bytes");
    assert_eq!(is_normal(&encoded), split(&encoded).is_ok_and(|again| again.normal));

    let (mut twice, mut twice_encoded) = (Vec::new(), Vec::new());
    assert_eq!(normalise(&encoded, rules, &mut twice, &mut twice_encoded), Ok(()));
    assert_eq!((&twice, &twice_encoded), (&decoded, &encoded), "normalising twice is normalising once");
}
