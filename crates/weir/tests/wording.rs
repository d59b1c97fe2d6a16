//! The wording of comments, as CONTRIBUTING.md asks for it.

use std::fs;
use std::path::PathBuf;

use crate::harness::repository;

/// Words that promise a sentence about the thing instead of naming it.
const OPENINGS: [&str; 6] = ["What", "Whether", "How", "Where", "Who", "Why"];

#[test]
fn comments_begin_with_the_thing_that_they_describe() {
    let mut wrong = Vec::new();
    let mut comments = 0;
    let mut left: Vec<PathBuf> = vec![repository().join("crates")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).expect("a folder of sources").map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let mut before = "";
            for (number, line) in text.lines().enumerate() {
                let comment = words(line);
                if !comment.is_empty() && before.is_empty() {
                    comments += 1;
                    let first = comment.split(' ').next().unwrap_or_default();
                    if OPENINGS.contains(&first) && comment.len() > first.len() {
                        wrong.push(format!("{}:{}: {comment}", path.display(), number + 1));
                    }
                }
                before = comment;
            }
        }
    }
    assert!(comments > 1000, "{comments} comments");
    assert!(wrong.is_empty(), "begin with the thing, a noun phrase first (CONTRIBUTING.md):\n{}", wrong.join("\n"));
}

/// The text of a line that is a comment; empty for other lines, and between the paragraphs of a comment.
fn words(line: &str) -> &str {
    let Some(comment) = line.trim_start().strip_prefix("//") else { return "" };
    comment.strip_prefix(['/', '!']).unwrap_or(comment).trim()
}
