//! The gateway's own settings, from all their sources.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use weir_config::load::Ending;
use weir_config::settings::{SettingsSource, leaves};
use weir_config::{Code, Diagnostic, Mark, Node, Settings, file};
use weir_kong::conf;

use crate::cli::SettingsArgs;
use crate::failure::Failure;
use crate::process::handover;
use crate::source::rules::chosen_plugins;
use crate::source::scripts;

/// Environment variable with the path of the settings file; not a setting itself.
const FILE_VARIABLE: &str = "WEIR_SETTINGS";

/// The settings, and facts about their file.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) warnings: Vec<Diagnostic>,
    /// Evidence that the settings file was whole, if there is one.
    pub(crate) ending: Option<Ending>,
}

/// Reads the settings. The file takes precedence over defaults, the environment over the file, and flags over the
/// environment. In Kong's family, which `is_kong` or a `kong.conf` says, its ports and the variables `KONG_…` come below
/// all of these.
pub(crate) fn load(args: &SettingsArgs, flags: Vec<(String, String)>, is_kong: bool) -> Result<Loaded, Failure> {
    let text = match &args.settings {
        Some(path) => {
            let name = path.display().to_string();
            let text = file::read_text(path).with_context(|| format!("cannot read the settings file {name}"))?;
            Some((name, text))
        }
        None => None,
    };
    let variables = variables(std::env::vars_os());
    let flags: Vec<_> = args.assignments.iter().cloned().chain(flags).collect();
    let (text, conf) = match text {
        Some((name, text)) if is_kong_conf(&name) => (None, Some((name, text))),
        text => (text, None),
    };
    let (mut below, mut of_kong) = (Vec::new(), Vec::new());
    if is_kong || conf.is_some() {
        let read = conf::read(conf.as_ref().map(|(name, text)| (name.as_str(), text.as_str())), &variables);
        below = conf::defaults();
        below.extend(read.settings);
        of_kong = read.found;
        if of_kong.iter().any(Diagnostic::is_error) {
            return Err(Failure::Refused(of_kong));
        }
    }
    let loaded = Settings::load(SettingsSource {
        file: text.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        variables: &variables,
        flags: &flags,
        below: &below,
    });
    let (settings, mut found) = loaded.map_err(|mut found| {
        drop(found.splice(0..0, std::mem::take(&mut of_kong)));
        let from_flag = |one: &Diagnostic| one.is_error() && one.file == "command line";
        if found.iter().any(from_flag) { Failure::Flags(found) } else { Failure::Refused(found) }
    })?;
    found.extend(of_kong);
    scripts::configure(&settings)?;
    found.extend(missing_plugins(&settings, text.as_ref().map(|(name, text)| (name.as_str(), text.as_str()))));
    let limits = &settings.limits;
    let largest = limits.buffered_body.bytes().max(limits.head_size.bytes()).max(limits.response_head_size.bytes());
    if limits.buffers.bytes() < 4 * largest {
        let rule = "less than four times the largest of limits.buffered_body, limits.head_size and \
                    limits.response_head_size: what is as large may never find room";
        let code = Code::SettingsAtOdds { rule };
        return Err(Failure::Refused(vec![Diagnostic::error(Mark::NONE, "limits.buffers", code)]));
    }
    let ending = text.map(|(_, text)| Ending::of(text.as_bytes()));
    Ok(Loaded { settings, warnings: found, ending })
}

/// True for the name of a `kong.conf`, which is no YAML.
fn is_kong_conf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "conf")
}

/// The rules file that Kong's own settings name (`declarative_config`).
pub(crate) fn declarative_config(args: &SettingsArgs) -> Option<PathBuf> {
    let conf = args.settings.as_ref().filter(|path| is_kong_conf(&path.display().to_string()));
    let text = conf.and_then(|path| file::read_text(path).ok());
    conf::declarative_config(text.as_deref(), &variables(std::env::vars_os())).map(PathBuf::from)
}

/// A warning about plugins in the list `plugins` that the gateway does not have, as in lists made for APISIX. Only a
/// configuration that uses such a plugin is refused.
fn missing_plugins(settings: &Settings, file: Option<(&str, &str)>) -> Option<Diagnostic> {
    let chosen = chosen_plugins(&settings.plugins);
    let missing = chosen.missing();
    if missing.is_empty() {
        return None;
    }
    // A plugin listed in the file has a line there.
    let parsed = file.and_then(|(_, text)| Node::parse(text.trim_start_matches('\u{feff}')).ok());
    let list = parsed.as_ref().and_then(|parsed| parsed.root.get("plugins"));
    let line = |name: &str| {
        let item = list.and_then(Node::as_seq)?.iter().find(|item| item.as_str() == Some(name))?;
        Some(format!("{name} (line {})", item.mark.line))
    };
    let names: Vec<String> = missing.iter().map(|name| line(name).unwrap_or_else(|| (*name).to_owned())).collect();
    let code = Code::PluginsNotThere { names: names.join(", ") };
    let warning = Diagnostic::warning(list.map_or(Mark::NONE, |list| list.mark), "plugins", code);
    Some(match file.filter(|_| list.is_some()) {
        Some((name, _)) => warning.in_file(name),
        None => warning,
    })
}

/// The environment without variables that only look like settings. A variable that is not UTF-8 is never a setting.
fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name != FILE_VARIABLE && name != handover::VARIABLE)
        .filter(|(name, value)| !is_service_link(name, value))
        .collect()
}

/// True for a variable set by Kubernetes (or earlier by Docker's links) for a service called `weir` or `weir-…`:
/// WEIR_SERVICE_HOST, WEIR_SERVICE_PORT_HTTP, WEIR_PORT=tcp://…, WEIR_PORT_9080_TCP_ADDR.
fn is_service_link(name: &str, value: &str) -> bool {
    if leaves().iter().any(|leaf| leaf.variable == name) {
        return false;
    }
    let numbered_port = || {
        name.split("_PORT_").skip(1).any(|rest| {
            let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            digits.len() < rest.len() && ["_TCP", "_UDP", "_SCTP"].iter().any(|p| digits.starts_with(p))
        })
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && value.contains("://"))
        || numbered_port()
}

#[cfg(test)]
mod tests {
    use super::variables;

    #[test]
    fn what_kubernetes_adds_is_no_setting() {
        let cases = [
            ("WEIR_SETTINGS", "weir.yaml", false),
            ("WEIR_HANDOVER", "stdin", false),
            ("WEIR_SERVICE_HOST", "10.0.0.1", false),
            ("WEIR_SERVICE_PORT", "9080", false),
            ("WEIR_SERVICE_PORT_HTTP", "9080", false),
            ("WEIR_PORT", "tcp://10.0.0.1:9080", false),
            ("WEIR_PORT_9080_TCP", "tcp://10.0.0.1:9080", false),
            ("WEIR_PORT_9080_TCP_ADDR", "10.0.0.1", false),
            ("WEIR_METRICS_PORT_9091_TCP_PROTO", "tcp", false),
            ("WEIR_PORT", "9080", true),
            ("WEIR_WORKERS", "2", true),
            ("WEIR_METRICS_PATH", "/metrics", true),
            ("WEIR_WORKRES", "2", true),
            ("HOME", "/root", true),
        ];
        for (name, value, kept) in cases {
            let left = variables([(name.into(), value.into())].into_iter());
            assert_eq!(!left.is_empty(), kept, "{name}={value}");
        }
    }
}
