//! Recipes of packages: what they hold is there, is valid, and works.

use std::fs;
use std::process::Command;

use crate::harness::{Start, binary, program, repository, weir};

fn run(command: &mut Command) -> String {
    let output = command.output().expect("start a program");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    out.into_owned()
}

#[test]
fn a_debian_package_holds_a_gateway_that_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = repository().join("packaging/debian/build");
    run(Command::new(build).arg(binary()).arg(folder.path()).env("COMPRESSION", "none"));
    let package =
        fs::read_dir(folder.path()).expect("read the folder").next().expect("a package").expect("an entry").path();
    let info = run(Command::new(program("dpkg-deb")).arg("--info").arg(&package));
    for field in ["Package: weir", "Version: 0.1.0", "conffiles", "postinst"] {
        assert!(info.contains(field), "{info}");
    }
    let root = folder.path().join("root");
    run(Command::new(program("dpkg-deb")).arg("--extract").arg(&package).arg(&root));
    let installed = root.join("usr/bin/weir");
    assert!(run(Command::new(&installed).arg("version")).starts_with("weir "));
    let (settings, rules) = (root.join("etc/weir/weir.yaml"), root.join("etc/weir/apisix.yaml"));
    run(Command::new(&installed).args(["check", "--strict"]).arg(&rules).arg("--settings").arg(&settings));
    for unit in ["weir.service", "weir.socket", "weir-https.socket"] {
        assert!(root.join("usr/lib/systemd/system").join(unit).is_file(), "{unit}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        run(Command::new("sh").arg("-n").arg(repository().join("packaging/debian").join(script)));
    }
}

/// Every file that the recipe of the container copies is there, its settings are taken, and its health check works.
#[test]
fn the_container_has_what_its_recipe_names() {
    let recipe = fs::read_to_string(repository().join("packaging/container/Containerfile")).expect("read the recipe");
    let copied =
        recipe.lines().filter(|line| line.starts_with("COPY ")).filter_map(|line| line.split(' ').rev().nth(1));
    let sources: Vec<&str> = copied.filter(|source| !source.starts_with('$')).collect();
    assert_eq!(sources.len(), 2, "{sources:?}");
    for source in sources {
        assert!(repository().join(source).exists(), "{source}");
    }
    assert!(recipe.contains("FROM scratch") && recipe.contains("USER 65532:65532"), "{recipe}");
    let settings = repository().join("packaging/container/weir.yaml");
    let (status, out, err) =
        weir(&["check", "--settings", &settings.display().to_string(), "--data-dir", "/nonexistent/x"]);
    assert!(!format!("{out}{err}").contains("weir.yaml"), "{status} {out}{err}");

    let gateway = Start::new(r#"{"routes": []}"#).start();
    let (status, out, err) = weir(&["ready", &gateway.status.to_string()]);
    assert_eq!((status, out.as_str()), (0, "ready\n"), "{err}");
    drop(gateway);
    let (status, _, err) = weir(&["ready", "127.0.0.1:1"]);
    assert!(status == 1 && err.contains("no answer from 127.0.0.1:1"), "{status} {err}");
}
