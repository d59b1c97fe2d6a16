use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::Cli;

#[test]
fn the_definitions_are_consistent() {
    Cli::command().debug_assert();
}

/// `docs/cli.md` holds what `--help` prints. `UPDATE_DOCS=1 cargo test -p weir` writes it anew.
#[test]
fn the_reference_is_up_to_date() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let generated = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, &generated).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == generated, "docs/cli.md is out of date: UPDATE_DOCS=1 cargo test -p weir");
}

fn reference() -> String {
    let mut command = Cli::command().term_width(110);
    // Names in usage lines are those of the whole command line.
    command.build();
    let mut out = String::from(
        "# Command line\n\n\
         Generated from the definitions in `crates/weir/src/cli.rs`: `UPDATE_DOCS=1 cargo test -p weir`.\n\
         [operations.md](operations.md) describes the operation of a running gateway.\n",
    );
    section(&mut out, "weir", &mut command.clone());
    for subcommand in command.get_subcommands_mut() {
        let name = format!("weir {}", subcommand.get_name());
        section(&mut out, &name, subcommand);
    }
    out
}

fn section(out: &mut String, name: &str, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    out.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
}
