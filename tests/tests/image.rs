//! The `Dockerfile` keeps what is promised of its image, as far as that can be told without
//! building it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const SINK: &str = "connectors/queen-s3";

fn read(file: &str) -> Result<String> {
    fs::read_to_string(Path::new(ROOT).join(file)).with_context(|| file.to_owned())
}

/// The value of the first line `<key> = "…"` of a manifest.
fn setting(manifest: &str, key: &str) -> Result<String> {
    let text = read(manifest)?;
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
    let value = value.with_context(|| format!("{manifest} has no {key}"))?;
    Ok(value.trim().trim_matches('"').to_owned())
}

/// An instruction of the Dockerfile, its continued lines joined: `COPY`, `[dev, dev]`.
struct Instruction {
    name: String,
    words: Vec<String>,
}

impl Instruction {
    /// The value of `--<flag>=`.
    fn flag(&self, flag: &str) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|word| {
            word.strip_prefix("--")?
                .strip_prefix(flag)?
                .strip_prefix('=')
        })
    }

    /// The words that are no flags of the instruction.
    fn arguments(&self) -> Vec<&str> {
        let words = self.words.iter().map(String::as_str);
        words.skip_while(|word| word.starts_with("--")).collect()
    }

    /// What a `COPY` takes, and where to.
    fn copied(&self) -> Result<(Vec<&str>, &str)> {
        let mut arguments = self.arguments();
        let to = arguments.pop().context("a COPY without a destination")?;
        Ok((arguments, to))
    }
}

/// A stage of the Dockerfile; the instructions before the first `FROM` are none's.
struct Stage {
    base: String,
    name: Option<String>,
    instructions: Vec<Instruction>,
}

impl Stage {
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Instruction> {
        let instructions = self.instructions.iter();
        instructions.filter(move |instruction| instruction.name == name)
    }

    /// The words of the only instruction of this name.
    fn only(&self, name: &str) -> Result<String> {
        let all: Vec<_> = self.all(name).collect();
        ensure!(all.len() == 1, "{} instructions {name}", all.len());
        Ok(all[0].words.join(" "))
    }
}

struct Dockerfile {
    /// `ARG` before the first `FROM`, as `NAME=default`.
    arguments: Vec<String>,
    stages: Vec<Stage>,
}

impl Dockerfile {
    fn read() -> Result<Self> {
        let text = read("Dockerfile")?;
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let text = lines.join("\n").replace("\\\n", " ");
        let mut arguments = Vec::new();
        let mut stages: Vec<Stage> = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_owned);
            let Some(name) = words.next() else { continue };
            let words: Vec<String> = words.collect();
            match (name.as_str(), stages.last_mut()) {
                ("FROM", _) => stages.push(Stage {
                    base: words.first().cloned().context("a FROM without a base")?,
                    name: words.get(2).cloned(),
                    instructions: Vec::new(),
                }),
                ("ARG", None) => arguments.extend(words),
                (_, None) => bail!("{name} before the first FROM"),
                (_, Some(stage)) => stage.instructions.push(Instruction { name, words }),
            }
        }
        Ok(Self { arguments, stages })
    }

    fn stage(&self, name: &str) -> Result<&Stage> {
        let mut stages = self.stages.iter();
        let stage = stages.find(|stage| stage.name.as_deref() == Some(name));
        stage.with_context(|| format!("no stage {name}"))
    }

    /// The stage that is the image.
    fn image(&self) -> Result<&Stage> {
        self.stages.last().context("no stage")
    }

    /// Every path of the repository that is copied.
    fn copied(&self) -> Result<BTreeSet<&str>> {
        let copies = self.stages.iter().flat_map(|stage| stage.all("COPY"));
        let mut paths = BTreeSet::new();
        for copy in copies.filter(|copy| copy.flag("from").is_none()) {
            paths.extend(copy.copied()?.0);
        }
        Ok(paths)
    }
}

/// Whether `name` is what `pattern`, with one `*` at most, describes.
fn describes(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => {
            let rest = name.strip_prefix(before);
            rest.is_some_and(|rest| rest.ends_with(after))
        }
    }
}

/// Whether `pattern` matches `path`, or a folder that it is in.
fn matches(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], _) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|at| matches(rest, &path[at..])),
        (_, []) => false,
        ([first, rest @ ..], [name, below @ ..]) => describes(first, name) && matches(rest, below),
    }
}

/// Whether `.dockerignore` keeps `path` out of a build: the last line that matches decides.
fn ignored(rules: &str, path: &str) -> bool {
    let path: Vec<&str> = path.split('/').collect();
    let lines = rules.lines().map(str::trim);
    let rules = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    rules.fold(false, |ignored, rule| {
        let pattern: Vec<&str> = rule.trim_start_matches('!').split('/').collect();
        if matches(&pattern, &path) {
            !rule.starts_with('!')
        } else {
            ignored
        }
    })
}

#[test]
fn broker_and_sink_lie_side_by_side_each_from_a_stage_of_its_own() -> Result<()> {
    let file = Dockerfile::read()?;
    let image = file.image()?;
    ensure!(image.only("WORKDIR")? == "/app");
    let mut stages = BTreeSet::new();
    for (program, package) in [("queen", "server"), ("queen-s3", SINK)] {
        let source = format!("/out/bin/{program}");
        let mut copies = image.all("COPY");
        let copy = copies.find(|copy| copy.arguments() == [source.as_str(), "bin/"]);
        let copy = copy.with_context(|| format!("{program} is not copied into /app/bin"))?;
        let from = copy.flag("from").context("a COPY from no stage")?;
        ensure!(stages.insert(from), "{from} builds both");
        let stage = file.stage(from)?;
        let build = format!("cargo install --locked --path {package} --root /out");
        ensure!(stage.only("RUN")?.ends_with(&build), "{from}: no {build}");
    }
    Ok(())
}

#[test]
fn the_image_runs_the_broker_unless_another_program_is_named() -> Result<()> {
    let file = Dockerfile::read()?;
    let image = file.image()?;
    ensure!(image.only("CMD")? == r#"["./bin/queen"]"#);
    // The name of a program would be an argument of it.
    ensure!(image.all("ENTRYPOINT").next().is_none(), "an ENTRYPOINT");
    ensure!(image.only("STOPSIGNAL")? == "SIGTERM");
    Ok(())
}

#[test]
fn the_image_is_built_with_the_rust_of_the_manifests_and_runs_on_the_debian_that_built_it()
-> Result<()> {
    let file = Dockerfile::read()?;
    let version = setting("Cargo.toml", "rust-version")?;
    ensure!(setting(&format!("{SINK}/Cargo.toml"), "rust-version")? == version);
    let argument = format!("RUST_VERSION={version}");
    ensure!(file.arguments.contains(&argument), "no {argument}");
    let bases: Vec<&str> = file
        .stages
        .iter()
        .map(|stage| stage.base.as_str())
        .filter(|base| file.stage(base).is_err())
        .collect();
    let expected = [
        "rust:${RUST_VERSION}-slim-${DEBIAN}",
        "debian:${DEBIAN}-slim",
    ];
    ensure!(bases == expected, "the bases are {bases:?}");
    Ok(())
}

#[test]
fn what_is_copied_into_a_build_is_there_and_not_ignored() -> Result<()> {
    let file = Dockerfile::read()?;
    let rules = read(".dockerignore")?;
    let copied = file.copied()?;
    for path in &copied {
        ensure!(Path::new(ROOT).join(path).exists(), "there is no {path}");
        ensure!(!ignored(&rules, path), "{path} is ignored");
    }
    // Cargo does not build a workspace that lacks one of its members.
    let members = setting("Cargo.toml", "members")?;
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    ensure!(members.len() >= 5, "the members are {members:?}");
    for member in members.into_iter().chain([SINK]) {
        let mut folders = Path::new(member).ancestors();
        let is_copied = |folder: &Path| folder.to_str().is_some_and(|it| copied.contains(it));
        ensure!(folders.any(is_copied), "{member} is not copied");
        for part in ["Cargo.toml", "src"] {
            let path = format!("{member}/{part}");
            ensure!(!ignored(&rules, &path), "{path} is ignored");
        }
    }
    Ok(())
}

#[test]
fn what_git_leaves_out_gets_into_no_build() -> Result<()> {
    let rules = read(".dockerignore")?;
    let left_out = read(".gitignore")?;
    let left_out: Vec<&str> = left_out
        .lines()
        .map(|line| line.trim_matches('/'))
        .collect();
    ensure!(left_out.len() >= 5, "git leaves out {left_out:?}");
    let others = [".git", ".env", "deploy/systemd/queen.env"];
    for path in left_out.into_iter().chain(others) {
        let path = path.replace('*', "server/src/a");
        ensure!(ignored(&rules, &path), "{path} gets in");
    }
    Ok(())
}

#[test]
fn the_image_tells_its_version_and_fits_the_manifests_of_kubernetes() -> Result<()> {
    let file = Dockerfile::read()?;
    let image = file.image()?;
    let version = setting("Cargo.toml", "version")?;
    ensure!(setting(&format!("{SINK}/Cargo.toml"), "version")? == version);
    let label = format!(r#"org.opencontainers.image.version="{version}""#);
    ensure!(image.only("LABEL")?.contains(&label), "no {label}");

    let deployment = read("deploy/kubernetes/queen-s3.yaml")?;
    let user = image.only("USER")?;
    let (user, group) = user.split_once(':').context("a user without a group")?;
    for line in [
        format!("image: registry.example.com/queen-mq:{version}\n"),
        "command: [/app/bin/queen-s3]\n".to_owned(),
        format!("runAsUser: {user}\n"),
        format!("runAsGroup: {group}\n"),
    ] {
        ensure!(deployment.contains(&line), "the Deployment has no {line}");
    }
    ensure!(user.parse::<u32>()? > 0, "the programs run as root");
    Ok(())
}

#[test]
fn the_broker_of_the_image_listens_beyond_its_loopback_and_the_sink_where_it_is_told_to()
-> Result<()> {
    let file = Dockerfile::read()?;
    let image = file.image()?;
    let pages = read("docs/broker.md")? + &read("docs/operating.md")?;
    let port = |variable: &str| {
        let row = format!("| `{variable}` | `");
        let (_, rest) = pages.split_once(&row).context(row)?;
        let default = rest.split('`').next().unwrap_or_default();
        let port = default.rsplit(':').next().unwrap_or_default();
        Ok::<_, anyhow::Error>(port.to_owned())
    };
    let (broker, sink) = (port("PORT")?, port("QUEEN_S3_LISTEN")?);
    ensure!(image.only("EXPOSE")? == format!("{broker} {sink}"));
    let variables = image.only("ENV")?;
    ensure!(variables == "QUEEN_LISTEN_HOST=0.0.0.0", "{variables}");
    let listen = format!("0.0.0.0:{sink}");
    for (file, set) in [
        (
            "deploy/kubernetes/queen-s3.yaml",
            format!("QUEEN_S3_LISTEN: {listen}"),
        ),
        ("deploy/README.md", format!("-e QUEEN_S3_LISTEN={listen}")),
    ] {
        ensure!(read(file)?.contains(&set), "{file} does not say {set}");
    }
    Ok(())
}
