//! The rules of the source tree that no compiler checks.
//!
//! The tests read the text files of the repository, and build nothing. A test fails if a crate depends
//! on another against the arrows, if modules form a circle, if a file cites a rule, a heading or a file
//! that is not there, or if a rule is removed by no test.
//!
//! *Source*: the arrows in `docs/architecture.md`, "Arrows between crates"; the rules in `docs/protocol.md`, "Rules by name".
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate, and the crates of ours that it may depend on.
const ARROWS: [(&str, &[&str]); 17] = [
    (".", &["engine", "command"]),
    (
        "frontend/command",
        &[
            "rules",
            "rpc",
            "storage",
            "manager",
            "engine",
            "frontend",
            "server",
            "shell",
            "benchmarks",
            "tatp",
            "smallbank",
            "sql-benchmarks",
            "wire-benchmarks",
            "microbenchmarks",
        ],
    ),
    ("frontend/benchmarks", &["frontend", "benchmarks", "tatp", "smallbank", "engine"]),
    ("frontend/benchmarks/wire", &["sql-benchmarks", "shell", "benchmarks"]),
    ("frontend/server", &["frontend", "engine"]),
    ("frontend/shell", &["frontend"]),
    ("frontend/syntax", &[]),
    ("tatp", &["benchmarks", "engine", "rules"]),
    ("smallbank", &["benchmarks", "engine"]),
    ("frontend", &["engine", "rules", "syntax"]),
    ("benchmarks/micro", &["benchmarks", "engine", "rpc"]),
    ("benchmarks", &["engine", "rpc", "storage"]),
    ("engine", &["manager", "rpc", "storage", "rules"]),
    ("manager", &["rules"]),
    ("rpc", &["rules"]),
    ("storage", &["rules"]),
    ("tests/rules", &[]),
];

/// Crates whose modules use each other in no circle.
const WITHOUT_CIRCLES: [&str; 2] = ["engine", "rpc"];

/// The files that may hold unsafe code.
const FENCE: [&str; 5] = [
    "rpc/src/ring/memory.rs",
    "rpc/src/verbs/device.rs",
    "rpc/src/verbs/device/slots.rs",
    "storage/src/arena.rs",
    "tests/allocations.rs",
];

/// The only files whose tests are run on request alone: they are of the tier of campaigns.
const CAMPAIGNS: [&str; 2] = ["tests/server/campaign.rs", "tests/many_tables.rs"];

/// The only files that may read the system's time, or sleep.
const CLOCKS: [&str; 6] = [
    "rpc/src/clock.rs",
    "benchmarks/src/harness.rs",
    "benchmarks/src/floor.rs",
    "frontend/src/clock.rs",
    "frontend/shell/src/stopwatch.rs",
    "frontend/command/src/simulate/campaign.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text files of the tree by their paths, the generated `target` left out.
fn texts() -> BTreeMap<String, String> {
    fn visit(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name == "target" || name.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                visit(&path, files);
            } else {
                files.push(path);
            }
        }
    }
    let mut files = Vec::new();
    visit(root(), &mut files);
    let name = |path: &Path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    // Files other than UTF-8 are skipped.
    let text = |path: &PathBuf| Some((name(path), fs::read_to_string(path).ok()?));
    files.iter().filter_map(text).collect()
}

fn sources() -> BTreeMap<String, String> {
    let sources: BTreeMap<_, _> =
        texts().into_iter().filter(|(name, _)| name.ends_with(".rs")).collect();
    assert!(sources.len() > 60, "only {} source files found", sources.len());
    sources
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let workspace: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let members: BTreeSet<_> = workspace["workspace"]["members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|member| member.as_str().unwrap())
        .collect();
    let known: BTreeSet<_> =
        ARROWS.iter().map(|(name, _)| *name).filter(|name| *name != ".").collect();
    assert_eq!(members, known, "every crate has its arrows");
    for (name, allowed) in ARROWS {
        let path = root().join(name).join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        let Some(dependencies) = manifest.get("dependencies").and_then(|table| table.as_table())
        else {
            continue;
        };
        for dependency in dependencies.keys() {
            if let Some(ours) = dependency.strip_prefix("gannet-") {
                assert!(allowed.contains(&ours), "{name} must not depend on {ours}");
            }
        }
    }
}

/// By module of a crate: the other modules that it uses.
fn uses_of_modules(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let Some(path) = path.strip_prefix(&format!("{name}/src/")) else { continue };
        let module = path.split(['/', '.']).next().unwrap();
        if module == "lib" || path.contains("tests") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let used = code.flat_map(|line| line.split("crate::").skip(1));
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let used = used.map(|path| path.split(|letter| !is_word(letter)).next().unwrap());
        let others = used.filter(|used| *used != module).map(str::to_owned);
        uses.entry(module.to_owned()).or_default().extend(others);
    }
    uses
}

#[test]
fn modules_form_no_circle() {
    for name in WITHOUT_CIRCLES {
        let mut uses = uses_of_modules(name);
        assert!(uses.len() > 5, "{name} has only {} modules", uses.len());
        // A module that uses none of those that are left, or that none of them uses, is in no circle.
        loop {
            let left: BTreeSet<_> = uses.keys().cloned().collect();
            let used: BTreeSet<_> = uses.values().flatten().cloned().collect();
            uses.retain(|module, of| used.contains(module) && !of.is_disjoint(&left));
            if uses.len() == left.len() {
                break;
            }
        }
        assert!(uses.is_empty(), "modules of {name} use each other in a circle: {uses:?}");
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for (name, text) in sources() {
        assert!(text.starts_with("//! "), "{name} does not open with //!");
    }
}

#[test]
fn unsafe_code_is_inside_the_fence() {
    let words = ["unsafe {", "unsafe fn", "unsafe impl"];
    let mut fenced = BTreeSet::new();
    for (name, text) in sources() {
        let mut code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let has_words = code.any(|line| words.iter().any(|word| line.contains(word)));
        if has_words && name != "tests/tidy.rs" {
            assert!(FENCE.contains(&name.as_str()), "{name} holds unsafe code");
            fenced.insert(name);
        }
    }
    assert_eq!(fenced.len(), FENCE.len(), "a file of the fence holds none: {fenced:?}");
}

#[test]
fn time_enters_in_few_places() {
    for (name, text) in sources() {
        let reads = ["Instant::now()", "SystemTime::now()", "thread::sleep("]
            .iter()
            .any(|call| text.lines().any(|line| line.contains(call) && !line.contains('"')));
        let allowed = CLOCKS.contains(&name.as_str()) || name.contains("/benches/");
        assert!(!reads || allowed, "{name} reads the time");
    }
}

#[test]
fn files_hold_one_concept() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 650, "{name} has {lines} lines: look for the second concept inside");
    }
}

#[test]
fn nothing_is_left_to_do_or_switched_off() {
    for (name, text) in sources() {
        if name == "tests/tidy.rs" {
            continue;
        }
        for word in ["todo!(", "unimplemented!(", "FIXME", "#[ignore"] {
            let allowed = CAMPAIGNS.contains(&&*name) && word == "#[ignore";
            assert!(allowed || !text.contains(word), "{name} contains {word}");
        }
    }
}

/// The files of `docs/` that a text cites, each with the heading in quotation marks behind it, if there is one.
fn citations(text: &str) -> Vec<(String, Option<String>)> {
    // A citation may go on in the next line of a comment.
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches(['/', '!', '*']));
    let text = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    let cited = text.split("`docs/").skip(1).filter_map(|rest| rest.split_once('`'));
    let heading = |rest: &str| Some(rest.strip_prefix(", \"")?.split_once('"')?.0.to_owned());
    cited.map(|(name, rest)| (format!("docs/{name}"), heading(rest))).collect()
}

#[test]
fn what_is_cited_is_there() {
    let mut cited = 0;
    for (name, text) in sources() {
        if name == "tests/tidy.rs" {
            continue;
        }
        for (document, heading) in citations(&text) {
            let found = fs::read_to_string(root().join(&document));
            let found = found.unwrap_or_else(|_| panic!("{name} cites {document}"));
            let is_heading =
                |line: &str| Some(line.trim_start_matches(['#', ' '])) == heading.as_deref();
            let is_there = heading.is_none() || found.lines().any(is_heading);
            assert!(is_there, "{name} cites {heading:?} of {document}");
            cited += 1;
        }
    }
    assert!(cited > 10, "only {cited} citations found");
}

#[test]
fn rules_that_are_cited_are_in_the_protocol() {
    let (protocol, rules) = (fs::read_to_string(root().join("docs/protocol.md")).unwrap(), rules());
    let mut cited = 0;
    for (name, text) in texts() {
        let is_document = name.ends_with(".md");
        // That file names the memory model of the language C, of 2011.
        if !(is_document || name.ends_with(".rs")) || name == "storage/src/loom_tests.rs" {
            continue;
        }
        let lines = text.lines().filter(|line| is_document || line.trim().starts_with("//"));
        let words = lines.flat_map(|line| line.split(|letter: char| !letter.is_alphanumeric()));
        let number = |word: &str| word.strip_prefix('C').and_then(|rest| rest.parse::<u8>().ok());
        for rule in words.filter_map(number) {
            assert!(protocol.contains(&format!("**C{rule}. ")), "{name} cites rule C{rule}");
            cited += 1;
        }
        if name == "tests/tidy.rs" {
            continue;
        }
        for (rule, _) in text.split("rule `").skip(1).filter_map(|rest| rest.split_once('`')) {
            assert!(rules.contains_key(rule) || rule == "C9", "{name} cites rule {rule}");
            cited += 1;
        }
    }
    assert!(cited > 100, "only {cited} rules cited");
}

#[test]
fn what_sql_refuses_is_documented_by_name() {
    let documented = fs::read_to_string(root().join("docs/sql.md")).unwrap();
    let mut refused = 0;
    for (name, text) in sources() {
        for construct in text.split("unsupported(\"").skip(1) {
            let (construct, _) = construct.split_once('"').unwrap();
            // No client gets the refusals of folds: the session computes what the primaries refuse.
            if !name.starts_with("frontend/") || construct.contains("where the rows are") {
                continue;
            }
            assert!(
                documented.contains(&format!("`{construct}`")),
                "docs/sql.md lacks {construct}"
            );
            refused += 1;
        }
    }
    assert!(refused > 40, "only {refused} refused constructs found");
}

/// The rules and faults that the crates list, each with its file.
fn rules() -> BTreeMap<String, String> {
    let is_name = |name: &&str| name.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_'));
    let mut rules = BTreeMap::new();
    for (file, text) in sources() {
        if file.ends_with("/src/rules.rs") || file.ends_with("/src/faults.rs") {
            let names = text.lines().filter_map(|line| line.trim().strip_suffix(','));
            for name in names.filter(is_name) {
                let other = rules.insert(name.to_owned(), file.clone());
                assert!(other.is_none(), "{name} is in {file} and in {other:?}");
            }
        }
    }
    assert!(rules.len() > 20, "only {} rules found", rules.len());
    rules
}

#[test]
fn rules_are_removed_by_tests_that_are_listed() {
    let texts = texts();
    let (list, _) = texts["tests/mutants.rs"].split_once("#![allow").unwrap();
    for (rule, file) in rules() {
        assert!(list.contains(&format!("`{rule}`")), "tests/mutants.rs lists no test for {rule}");
        let module = file.rsplit('/').next().unwrap().trim_end_matches(".rs");
        let uses = ["remove()", "inject()"].map(|call| format!("{module}::{rule}.{call}"));
        let is_test = |name: &str| {
            let is_one = name.contains("tests/") || name.ends_with("tests.rs");
            is_one && !name.starts_with("tests/rules/")
        };
        let is_used = texts.iter().filter(|(name, _)| is_test(name)).any(|(_, text)| {
            uses.iter().any(|call| text.contains(call))
                || text.contains(&format!("\"{rule}\""))
                || text.contains(&format!("Some(&{module}::{rule})"))
        });
        assert!(is_used, "no test removes {rule} of {file}");
    }
}

#[test]
fn rules_of_the_protocol_have_their_names_in_the_code() {
    let (protocol, rules) = (fs::read_to_string(root().join("docs/protocol.md")).unwrap(), rules());
    let numbers = protocol.lines().filter_map(|line| line.strip_prefix("**")?.split_once(". "));
    for (number, _) in numbers {
        let is_it = |rule: &String| rule.split('_').next() == Some(number);
        assert!(rules.keys().any(is_it), "no crate has a rule {number}");
    }
    let (_, section) = protocol.split_once("## Rules by name").expect("the section is there");
    let section = section.split("\n## ").next().unwrap();
    let rows =
        section.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
    let rows: BTreeSet<&str> = rows.collect();
    for rule in &rows {
        assert!(
            rules.contains_key(*rule),
            "docs/protocol.md names {rule}; no crate has such a rule"
        );
    }
    assert!(rows.len() > 5, "only {} rules are in the table", rows.len());
    for rule in rules.keys().filter(|rule| protocol.contains(&format!("`{rule}`"))) {
        assert!(rows.contains(&**rule), "{rule} is missing in the table of docs/protocol.md");
    }
}

/// The Markdown files that a text names.
fn documents_named(text: &str) -> impl Iterator<Item = &str> {
    let is_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let words = text.split(move |letter| !is_path(letter));
    words
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| Path::new(word).extension() == Some("md".as_ref()))
}

#[test]
fn documents_that_any_file_names_are_there() {
    let mut found = 0;
    for (name, text) in texts() {
        for document in documents_named(&text) {
            let beside = Path::new(&name).with_file_name(document);
            let is_there = root().join(document).exists() || root().join(beside).exists();
            assert!(is_there, "{name} names {document}, which is not there");
            found += 1;
        }
    }
    assert!(found > 30, "only {found} documents are named");
}

#[test]
fn functions_that_documents_point_to_are_there() {
    let sources = sources();
    let mut found = 0;
    for (document, text) in texts().iter().filter(|(name, _)| name.ends_with(".md")) {
        for line in text.lines().filter(|line| line.contains("| `fn ")) {
            let names: Vec<_> = line.split('`').skip(1).step_by(2).collect();
            let [function, file] = names[..] else { panic!("{document}: {line}") };
            let source = sources.get(file).unwrap_or_else(|| panic!("{document}: no {file}"));
            let is_it = [format!("{function}("), format!("{function}<")];
            let is_there = is_it.iter().any(|start| source.contains(start));
            assert!(is_there, "{document}: {file} has no {function}");
            found += 1;
        }
    }
    assert!(found > 10, "only {found} functions are pointed to");
}

#[test]
fn source_files_that_documents_name_are_there() {
    let sources = sources();
    let is_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let mut found = 0;
    for (document, text) in texts().iter().filter(|(name, _)| name.ends_with(".md")) {
        let code = text.split('`').skip(1).step_by(2);
        for name in code.filter(|name| name.ends_with(".rs") && name.chars().all(is_path)) {
            // A section about a crate may name that crate's files without their folder.
            let is_it = |path: &String| path == name || path.ends_with(&format!("/{name}"));
            assert!(sources.keys().any(is_it), "{document} names {name}, which is not there");
            found += 1;
        }
    }
    assert!(found > 50, "only {found} files are named");
}
