//! The files of a crate and what they import from each other: who knows each other in a circle can only be read, and
//! changed, together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::harness::repository;

/// Most files that may know each other in a circle.
const MOST: usize = 3;

/// A module, as the path from the root of its crate.
type Module = Vec<String>;

/// The modules that each module imports from.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn files_know_each_other_in_small_circles_only() {
    let mut wrong = Vec::new();
    let mut crates = 0;
    for entry in fs::read_dir(repository().join("crates")).expect("the crates") {
        let folder = entry.expect("an entry").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let imports = imports_of(&sources(&folder.join("src")));
        crates += 1;
        let largest = circles(&imports).into_iter().max_by_key(Vec::len).unwrap_or_default();
        if largest.len() > MOST {
            let files: Vec<String> = largest.iter().map(path_of).collect();
            wrong.push(format!("{name}: {} files, {MOST} allowed: {}", largest.len(), files.join(" ")));
        }
    }
    assert!(crates >= 11, "{crates} crates");
    assert!(wrong.is_empty(), "circles of imports that are too large:\n{}", wrong.join("\n"));
}

/// The files of a crate, without those of its tests.
fn sources(folder: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![(folder.to_owned(), Module::new())];
    while let Some((folder, module)) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let inner = || module.iter().cloned().chain([name.clone()]).collect::<Module>();
            if name.starts_with("test") {
                continue;
            }
            if path.is_dir() {
                folders.push((path, inner()));
            } else if path.extension().is_some_and(|e| e == "rs") {
                let is_root = module.is_empty() && ["lib", "main"].contains(&name.as_str());
                let module = if is_root { Module::new() } else { inner() };
                found.insert(module, fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    found
}

fn imports_of(sources: &BTreeMap<Module, String>) -> Imports {
    let imports = |(module, text): (&Module, &String)| {
        let paths = paths(&code_of(text));
        let known = paths.iter().filter_map(|path| resolve(module, path, |m| sources.contains_key(m)));
        (module.clone(), known.filter(|other| other != module).collect())
    };
    sources.iter().map(imports).collect()
}

/// A source without comments, contents of strings, and tests.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in text.split("#[cfg(test)]").next().unwrap_or_default().lines() {
        let mut in_string = false;
        let mut before = ' ';
        for (at, c) in line.char_indices() {
            if !in_string && line[at..].starts_with("//") {
                break;
            }
            if c == '"' && before != '\\' && before != '\'' {
                in_string = !in_string;
            }
            if !in_string {
                code.push(c);
            }
            before = if before == '\\' { ' ' } else { c };
        }
        code.push(' ');
    }
    code
}

/// The paths below `crate`, `super` and `self` that a source names, those of `use` without their braces.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let (before, after) = rest.split_at(at);
        in_expressions(before, &mut found);
        let starts = before.chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let end = after.find(';').unwrap_or(after.len());
        if starts {
            expand(&[], &after[4..end], &mut found);
            rest = &after[end..];
        } else {
            rest = &after[4..];
        }
    }
    in_expressions(rest, &mut found);
    found.retain(|path| path.first().is_some_and(|first| ["crate", "super", "self"].contains(&first.as_str())));
    found
}

/// Expands the braces of a `use`.
fn expand(before: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    let parts = tree.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    for part in parts {
        let (path, inner) = part.split_once('{').map_or((part, None), |(path, inner)| (path, inner.rsplit_once('}')));
        let path = path.split(" as ").next().unwrap_or_default().split("::").map(|name| name.trim().to_owned());
        let path: Vec<String> = before.iter().cloned().chain(path.filter(|name| !name.is_empty())).collect();
        match inner {
            Some((inner, _)) => expand(&path, inner, found),
            None if path.len() > before.len() => found.push(path),
            None => {}
        }
    }
}

/// The paths that stand elsewhere than in a `use`.
fn in_expressions(code: &str, found: &mut Vec<Vec<String>>) {
    for word in code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
        if word.contains("::") {
            found.push(word.split("::").map(str::to_owned).collect());
        }
    }
}

/// The file that a path of `module` leads into.
fn resolve(module: &Module, path: &[String], exists: impl Fn(&Module) -> bool) -> Option<Module> {
    let mut base = module.clone();
    let mut names = path.iter().peekable();
    match names.next()?.as_str() {
        "crate" => base.clear(),
        "super" => {
            base.pop();
            while names.next_if(|name| *name == "super").is_some() {
                base.pop();
            }
        }
        _ => {}
    }
    let mut found = exists(&base).then(|| base.clone());
    for name in names {
        base.push(name.clone());
        if exists(&base) {
            found = Some(base.clone());
        }
    }
    found
}

/// The sets of modules of which each imports, on some way, from each other.
fn circles(imports: &Imports) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reached_from(module, imports))).collect();
    let circle = |module: &&Module| -> Vec<Module> {
        let others = reached[*module].iter().filter(|other| reached[**other].contains(module));
        others.map(|other| (*other).clone()).collect()
    };
    reached.keys().map(circle).collect()
}

fn reached_from<'a>(from: &'a Module, imports: &'a Imports) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(module) = next.pop() {
        next.extend(imports.get(module).into_iter().flatten().filter(|other| reached.insert(*other)));
    }
    reached
}

fn path_of(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("/") }
}

#[test]
fn imports_are_found_in_every_form() {
    let sources: BTreeMap<Module, String> = [
        ("", "mod a; use a::b::Thing; // use crate::never;"),
        ("a", "use crate::{c, a::b::{self, Other}};\npub use self::b::More;"),
        (
            "a/b",
            "fn f() { super::super::c::g(); let s = \"crate::never\"; }\n#[cfg(test)]\nmod tests { use crate::never; }",
        ),
        ("c", "use super::a::b as alias; use std::fmt;"),
        ("never", "/// Of [`crate::c`].\nuse crate::{\n    a::{self},\n    c::{x, y as z},\n};"),
    ]
    .into_iter()
    .map(|(path, text)| (path.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect(), text.to_owned()))
    .collect();
    let imports = imports_of(&sources);
    let told: Vec<String> = imports
        .iter()
        .map(|(module, others)| {
            format!("{}: {}", path_of(module), others.iter().map(path_of).collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert_eq!(told, ["lib: ", "a: a/b c", "a/b: c", "c: a/b", "never: a c"]);
    let circles = circles(&imports);
    assert_eq!(circles.iter().map(Vec::len).max(), Some(2), "{circles:?}");
}
