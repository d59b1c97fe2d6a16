//! The files of a gateway, gathered into one document: `tyk.conf`, the API definitions of its folder, and the policies.
//!
//! The first line of the document says which file has how many lines; each file follows as it was written, so that the
//! position of a finding leads back to it.

pub(crate) mod scripts;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use weir_config::node::MAX_TEXT_BYTES;
use weir_config::{Diagnostic, Node, file};

use crate::conf::Conf;

/// Key of a gathered document.
pub(crate) const KEY: &str = "tyk";

/// Place of the configuration of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A `tyk.conf`, which names the others.
    Conf(PathBuf),
    /// A folder of API definitions.
    Folder(PathBuf),
}

/// A gathered document.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// The text.
    pub text: String,
    /// Names of the files, each with the line of the document at which it begins and the number of its lines.
    files: Vec<(String, u32, u32)>,
}

/// Most files of one gateway.
const MOST_FILES: usize = 10_000;

impl Place {
    /// The place that a path leads to; `None` for a file that is no `tyk.conf`.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        if path.is_dir() {
            return Some(Self::Folder(path.to_owned()));
        }
        let text = file::read(path, MAX_TEXT_BYTES).ok()?;
        let conf = first_value(std::str::from_utf8(&text).ok()?).ok()?.0;
        let has = |field: &str| conf.get(field).is_some();
        let is_conf = has("listen_port") && ["app_path", "template_path", "storage", "secret"].into_iter().any(has);
        is_conf.then(|| Self::Conf(path.to_owned()))
    }

    /// The folder of API definitions, and the file of policies.
    ///
    /// # Errors
    /// `tyk.conf` cannot be read.
    pub fn conf(&self) -> Result<Conf, String> {
        match self {
            Self::Folder(folder) => Ok(Conf { app_path: Some(folder.clone()), ..Conf::default() }),
            Self::Conf(path) => {
                let text = file::read_text(path).map_err(|error| told(path, &error))?;
                let (value, _) = first_value(&text).map_err(|error| format!("{}:{error}", path.display()))?;
                Conf::read(&value, path.parent().unwrap_or(Path::new(".")))
                    .map_err(|error| format!("{}: {error}", path.display()))
            }
        }
    }

    /// Gathers the files.
    ///
    /// # Errors
    /// A file cannot be read, or is no JSON: file, line and reason.
    pub fn gather(&self) -> Result<Gathered, String> {
        let conf = self.conf()?;
        let mut files: Vec<(&str, PathBuf)> = Vec::new();
        if let Self::Conf(path) = self {
            files.push(("conf", path.clone()));
        }
        if let Some(folder) = &conf.app_path {
            files.extend(definitions(folder)?.into_iter().map(|path| ("api", path)));
        }
        match &conf.policies {
            Some(path) if path.is_dir() => files.extend(definitions(path)?.into_iter().map(|path| ("policies", path))),
            // Tyk starts without a file of policies as well.
            Some(path) if path.exists() => files.push(("policies", path.clone())),
            _ => {}
        }
        let certificates = conf.tls.iter().flat_map(|tls| tls.paths());
        let mut scripts: Vec<String> = certificates.chain(conf.templates()).map(str::to_owned).collect();
        let mut gathered = Gathered::default();
        let (mut header, mut body) = (Vec::new(), String::new());
        let mut line = 2;
        let mut holds_definition = false;
        for (kind, path) in files {
            let text = file::read_text(&path).map_err(|error| told(&path, &error))?;
            let text = text.trim_start_matches('\u{feff}');
            let name = path.display().to_string();
            let text = self::text(text, &path).map_err(|error| format!("{name}:{error}"))?;
            let lines = 1 + text.matches('\n').count() as u32;
            holds_definition |= kind == "api" && is_definition(&text);
            if kind == "api" {
                scripts::add(&text, &mut scripts);
            }
            if !body.is_empty() {
                body.push_str(",\n");
                line += 1;
            }
            gathered.files.push((name.clone(), line, lines));
            header.push(json!({ "kind": kind, "name": name }));
            body.push_str(&text);
            body.push('\n');
            line += lines;
            if body.len() > MAX_TEXT_BYTES {
                return Err(format!(
                    "{name}: with this file there are more than the {MAX_TEXT_BYTES} bytes that are read"
                ));
            }
        }
        for path in scripts {
            let text = self.script(&path, conf.app_path.as_deref())?;
            if !body.is_empty() {
                body.push_str(",\n");
            }
            header.push(json!({ "kind": "script", "name": path }));
            body.push_str(&Value::String(text).to_string());
            body.push('\n');
            if body.len() > MAX_TEXT_BYTES {
                return Err(format!(
                    "{path}: with this file there are more than the {MAX_TEXT_BYTES} bytes that are read"
                ));
            }
        }
        if let (Self::Folder(folder), false) = (self, holds_definition) {
            let expected =
                "expected API definitions of Tyk, or manifests of Kubernetes; a rules file is named by its own path";
            return Err(format!("{}: {expected}", folder.display()));
        }
        gathered.text = format!("{{\"{KEY}\":{},\"contents\":[\n{body}]}}\n", Value::Array(header));
        Ok(gathered)
    }

    /// The text of a script, a template or a certificate, whose path is looked for in the working directory, beside `tyk.conf`, and beside the folder of
    /// definitions.
    fn script(&self, path: &str, apps: Option<&Path>) -> Result<String, String> {
        let given = Path::new(path);
        let folders = match self {
            Self::Conf(conf) => [conf.parent(), apps.and_then(Path::parent), apps],
            Self::Folder(folder) => [folder.parent(), Some(folder.as_path()), None],
        };
        let beside = folders.into_iter().flatten().map(|folder| folder.join(given));
        let found = std::iter::once(given.to_owned()).chain(beside).find(|place| place.is_file());
        let found = found.ok_or_else(|| format!("{path}: there is no such file"))?;
        file::read_text(&found).map_err(|error| told(&found, &error))
    }
}

impl Gathered {
    /// A finding in the document as one in the file that it is about.
    #[must_use]
    pub fn locate(&self, mut found: Diagnostic) -> Diagnostic {
        let line = found.mark.line;
        if let Some((name, first, _)) =
            self.files.iter().find(|(_, first, lines)| (*first..first + lines).contains(&line))
        {
            found.file.clone_from(name);
            found.mark.line = line - first + 1;
        }
        found
    }
}

/// The text of a file as JSON, line by line where it is JSON.
fn text(text: &str, path: &Path) -> Result<String, String> {
    let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    if is_yaml {
        let parsed =
            Node::parse(text).map_err(|error| format!("{}:{}: {}", error.mark.line, error.mark.column, error.code))?;
        return Ok(parsed.root.to_json().to_string());
    }
    let (_, end) = first_value(text)?;
    Ok(text.get(..end).unwrap_or_default().trim_end().to_owned())
}

/// The first value of a text, and its end: whatever follows is not read, as in Tyk.
fn first_value(text: &str) -> Result<(Value, usize), String> {
    let conflict = text.lines().position(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
    if let Some(line) = conflict {
        return Err(format!("{}: a conflict of git that was not resolved", line + 1));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => {
            let end = values.byte_offset();
            Ok((value, end))
        }
        Some(Err(error)) => Err(format!("{}:{}: {error}", error.line(), error.column())),
        None => Err("1: the file is empty".to_owned()),
    }
}

/// True for a text in JSON that holds an API definition in either form.
fn is_definition(text: &str) -> bool {
    let fields: Option<Value> = serde_json::from_str(text).ok();
    fields.is_some_and(|fields| ["proxy", "api_id", "x-tyk-api-gateway"].iter().any(|name| fields.get(name).is_some()))
}

/// The API definitions of a folder, in the order of names. Of an API in both forms the OAS document is left out, because the
/// classic form beside it has all of it that the gateway uses.
fn definitions(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| told(folder, &error))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| told(folder, &error))?.path();
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if matches!(end, "json" | "yaml" | "yml") && !is_hidden && path.is_file() {
            paths.push(path);
        }
        if paths.len() > MOST_FILES {
            return Err(format!("{}: more than {MOST_FILES} files", folder.display()));
        }
    }
    paths.sort();
    let both: Vec<PathBuf> = paths
        .iter()
        .filter_map(|path| classic_of(path).filter(|classic| paths.contains(classic)).map(|_| path.clone()))
        .collect();
    paths.retain(|path| !both.contains(path));
    Ok(paths)
}

/// The file with the classic form of an OAS document, as Tyk names both.
fn classic_of(path: &Path) -> Option<PathBuf> {
    let stem = path.file_name()?.to_str()?.strip_suffix("-oas.json")?;
    Some(path.with_file_name(format!("{stem}.json")))
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::first_value;

    #[test]
    fn one_value_is_read() {
        assert_eq!(
            first_value("{\"a\": 1}\n}").map(|(value, end)| (value.to_string(), end)),
            Ok(("{\"a\":1}".into(), 8))
        );
        for (text, fault) in [
            ("{\n<<<<<<< HEAD\n\"a\": 1}", "2: a conflict of git that was not resolved"),
            ("{\n\"a\": 1,\n}", "3:1: trailing comma"),
            ("", "1: the file is empty"),
        ] {
            let error = first_value(text).expect_err("no JSON");
            assert!(error.starts_with(fault), "{error}");
        }
    }
}
