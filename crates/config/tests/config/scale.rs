//! Work that grows with the size of a file, and no faster.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::support::{OPTIONS, load_with};

fn rules(routes: usize, broken: bool) -> String {
    let mut text = String::from("routes:\n");
    for i in 0..routes {
        let upstream = if broken { format!("v{i}") } else { format!("u{i}") };
        let _ = writeln!(text, "  - {{id: r{i}, uri: /{i}/*, upstream_id: {upstream}, plugins: {{key-auth: {{}}}}}}");
    }
    text.push_str("upstreams:\n");
    for i in 0..routes {
        let _ = writeln!(text, "  - {{id: u{i}, nodes: {{\"10.0.0.1:{}\": 1}}}}", 1 + i % 65535);
    }
    text.push_str("consumers:\n");
    for i in 0..routes {
        let _ = writeln!(text, "  - {{id: c{i}/credentials/1, plugins: {{}}}}\n  - {{username: c{i}}}");
    }
    text + "#END\n"
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may look at the clock")]
fn ten_times_the_items_take_about_ten_times_as_long() {
    let fastest = |text: &str| {
        let time = || {
            let start = Instant::now();
            let loaded = load_with(text, &OPTIONS);
            (start.elapsed(), loaded)
        };
        let (first, loaded) = time();
        (first.min(time().0), loaded)
    };
    for broken in [false, true] {
        let (small, _) = fastest(&rules(200, broken));
        let (large, loaded) = fastest(&rules(2_000, broken));
        assert_eq!(loaded.errors().count(), if broken { 2_000 } else { 0 });
        assert_eq!(loaded.document.is_some(), !broken);
        // Quadratic work would take a hundred times as long.
        let bound = small.max(Duration::from_millis(20)) * 40;
        assert!(large < bound, "200 items take {small:?}, 2,000 take {large:?}");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may look at the clock")]
fn one_large_mapping_is_no_more_work_than_many_small_ones() {
    let mut text = String::from("routes:\n  - uri: /a\n    plugins: {}\n");
    for i in 0..10_000 {
        let _ = writeln!(text, "    field{i}: 1");
    }
    text.push_str("x: &x\n");
    for i in 0..10_000 {
        let _ = writeln!(text, "  field{i}: 1");
    }
    text.push_str("y: {<<: *x}\nhosts: [");
    for i in 0..10_000 {
        let _ = write!(text, "h{i}, ");
    }
    text.push_str("]\n#END\n");
    let start = Instant::now();
    let loaded = load_with(&text, &OPTIONS);
    assert_eq!(loaded.errors().count(), 10_000);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
