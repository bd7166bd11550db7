//! The planted bugs of `make mutants` have to fit the code as it is.

use std::fs;
use std::path::Path;

/// What a hunk expects to find, its file, and where it was when the patch was made.
struct Hunk {
    file: String,
    place: String,
    before: String,
    changes: bool,
}

fn hunks(patch: &str) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    let mut file = String::new();
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            name.clone_into(&mut file);
        } else if line.starts_with("@@") {
            hunks.push(Hunk {
                file: file.clone(),
                place: line.to_owned(),
                before: String::new(),
                changes: false,
            });
        } else if let (Some(hunk), false) = (hunks.last_mut(), line.starts_with("--- ")) {
            match line.split_at_checked(1) {
                Some((" " | "-", text)) => hunk.before += &format!("{text}\n"),
                None => hunk.before.push('\n'),
                Some(_) => {}
            }
            hunk.changes |= line.starts_with(['-', '+']);
        }
    }
    hunks
}

#[test]
fn every_planted_bug_fits_the_code_and_says_how_many_seeds_find_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let patches = fs::read_dir(root.join("tests/simulation/mutations")).expect("the patches");
    let mut count = 0;
    for patch in patches {
        let path = patch.expect("a patch").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let patch = fs::read_to_string(&path).expect("a text");
        let seeds = patch.lines().find_map(|line| line.strip_prefix("Seeds: "));
        let seeds: u64 = seeds.unwrap_or_default().parse().unwrap_or_default();
        assert!(seeds > 0, "{name} does not say how many seeds find it");
        let hunks = hunks(&patch);
        assert!(!hunks.is_empty(), "{name} changes nothing");
        for hunk in hunks {
            let file = root.join(&hunk.file);
            let code = fs::read_to_string(&file).unwrap_or_default();
            let found = hunk.changes && code.contains(&hunk.before);
            assert!(
                found,
                "{name} fits nowhere in {}: {}",
                hunk.file, hunk.place
            );
        }
        count += 1;
    }
    assert!(count >= 12, "{count} planted bugs");
}
