//! Settings of the command line and of files, and refused ones.
//!
//! The tests parse the texts of files, and build `Settings` in place of flags. They open no cluster and start no process.
//! A test fails if a file takes precedence over the command line, if a limit that was left out has another default, or if
//! settings that contradict each other are taken. The error must name the settings, and the lines of the file.
//!
//! *Not here*: processes that cannot become members, and one that a file starts (`tests/server/unsuitable.rs`).

use super::*;

fn parsed(text: &str) -> Result<Settings, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
}

#[test]
fn a_file_has_the_settings_of_the_command_line() {
    let file = parsed(
        "node = 1\nmembers = [\"127.0.0.1:7400\", \"[::1]:7400\"]\ntrusted-network = true\n\
         join-timeout = \"2m\"\nmemory = \"64MiB\"\nthreads = 1\ntoken-ttl = \"90m\"\n",
    );
    let flags = Settings { threads: Some(2), ..Settings::default() };
    let (options, membership) = flags.or(file.unwrap()).cluster().unwrap();
    assert_eq!((options.nodes, options.replicas, options.threads), (16, 2, 2), "more may join");
    assert_eq!(options.memory_limit_bytes, Some(64 << 20));
    assert_eq!(options.token_ttl, Duration::from_secs(90 * 60));
    let membership = membership.unwrap();
    assert_eq!(membership.node, 1);
    assert_eq!(membership.addresses[1], "[::1]:7400".parse().unwrap());
    assert_eq!(membership.join_timeout, Duration::from_secs(120));
    assert!(Settings::default().cluster().unwrap().1.is_none());
}

#[test]
fn a_setting_of_the_command_line_replaces_its_alternative_in_a_file() {
    let file = || parsed("nodes = 3\ncluster-key = \"/nowhere\"\n").unwrap();
    let members = Some(vec!["127.0.0.1:1".to_owned()]);
    let flags =
        Settings { node: Some(0), members, trusted_network: Some(true), ..Settings::default() };
    assert!(flags.or(file()).cluster().unwrap().1.is_some_and(|one| one.key.is_none()));
    let flags = Settings { nodes: Some(2), ..Settings::default() };
    let members = "node = 0\nmembers = [\"127.0.0.1:1\"]\ntrusted-network = true\nmtu = 1500\n";
    assert_eq!(flags.or(parsed(members).unwrap()).cluster().unwrap().0.nodes, 2);
    let flags = Settings { transport: Some(TransportName::Memory), ..Settings::default() };
    let (options, membership) = flags.or(parsed(members).unwrap()).cluster().unwrap();
    assert!(membership.is_some() && options.nodes == 1, "as many as are named");
    // A process that is to join asks nobody that the file names.
    let flags =
        Settings { join: Some(vec!["nowhere".to_owned()]), node: Some(1), ..Settings::default() };
    let error = flags.or(parsed(members).unwrap()).cluster().err().unwrap().to_string();
    assert!(error.contains("join needs node and address"), "{error}");
}

#[test]
fn the_memory_of_a_statement_is_part_of_that_of_all() {
    let limits = |text| parsed(text).unwrap().statements();
    let both = |limits: MemoryLimits| (limits.statement_bytes, limits.all_bytes);
    assert_eq!(both(limits("").unwrap()), (256 << 20, 1 << 30));
    let more = limits("statement-memory = \"2GiB\"").unwrap();
    assert_eq!(both(more), (2 << 30, 2 << 30));
    let less = limits("query-memory = \"64MiB\"").unwrap();
    assert_eq!(both(less), (64 << 20, 64 << 20));
    let text = "statement-memory = \"2MiB\"\nquery-memory = \"1MiB\"";
    let error = limits(text).unwrap_err().to_string();
    assert!(error.contains("statement-memory is more than query-memory"), "{error}");
}

#[test]
fn a_contradiction_names_the_lines_of_a_file() {
    let text = "# a node\nnode = 0\n\nmembers = [\n  \"127.0.0.1:1\",\n]\nnodes = 3\n";
    let file = Some(SettingsFile::new(Path::new("node.toml"), text));
    let settings = Settings { file, ..parsed(text).unwrap() };
    let error = settings.cluster().err().unwrap().to_string();
    let expected = "; node.toml has nodes in line 7, node in line 2, members in line 4";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn a_server_without_connections_is_refused() {
    for (value, fits) in [("0", false), ("1", true), ("1048577", false)] {
        let checked = parsed(&format!("connections-max = {value}")).unwrap().check();
        assert_eq!(checked.is_ok(), fits);
        let error = checked.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(fits || error.contains(&format!("connections-max is {value}")), "{error}");
    }
}

#[test]
fn programs_have_a_key_of_their_own() {
    let folder = std::env::temp_dir().join(format!("gannet-settings-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, digit: &str| {
        let path = folder.join(name);
        std::fs::write(&path, digit.repeat(64)).unwrap();
        let owners = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, owners).unwrap();
        path
    };
    let (first, second, same) = (write("a", "1"), write("b", "2"), write("c", "1"));
    let gateway = |cluster_key: Option<&PathBuf>, clients_key: Option<&PathBuf>| {
        let text = "clients = \"127.0.0.1:0\"\ntables = [\"stock:8\"]\n";
        let (cluster_key, clients_key) = (cluster_key.cloned(), clients_key.cloned());
        let settings = Settings { cluster_key, clients_key, ..parsed(text).unwrap() };
        settings.gateway().map(|options| options.unwrap().key)
    };
    let error = |cluster, clients| gateway(cluster, clients).unwrap_err().to_string();
    assert!(gateway(None, None).unwrap().is_none());
    assert_eq!(gateway(Some(&first), Some(&second)).unwrap(), Some(ClusterKey::new([0x22; 32])));
    assert!(gateway(None, Some(&second)).unwrap().is_some());
    assert!(error(Some(&first), None).contains("needs clients-key"));
    assert!(error(Some(&first), Some(&same)).contains("are the same"));
    let alone = Settings { clients_key: Some(second), ..Settings::default() };
    assert!(alone.gateway().unwrap_err().to_string().contains("give clients too"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (text, expected) in [
        ("node = 0\nport = 1", "line 2"),
        ("node = -1", "line 1"),
        ("transport = \"tcp\"", "expected one of `udp`, `memory`, `verbs`"),
        ("join-timeout = \"soon\"", "such as 10s"),
    ] {
        let error = parsed(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (text, expected) in [
        ("node = 0", "node needs members"),
        ("members = [\"a:1\"]", "members needs node"),
        ("node = 0\nmembers = [\"127.0.0.1:1\"]", "openssl rand -hex 32"),
        ("node = 0\nmembers = [\"here\"]\ntrusted-network = true", "member 0 is \"here\""),
        ("node = 0\nmembers = [\"127.0.0.1:1\"]\nnodes = 3", "nodes is for"),
        ("mtu = 1500", "give node and members too"),
        ("cluster-key = \"/nowhere\"", "give node and members too"),
        ("transport = \"memory\"", "give node and members too"),
        (
            "node = 0\nmembers = [\"127.0.0.1:1\"]\ntransport = \"memory\"\nmtu = 1500",
            "leave it out with memory",
        ),
        (
            "node = 0\nmembers = [\"127.0.0.1:1\"]\ntransport = \"verbs\"\ncluster-key = \"/nowhere\"",
            "neither encrypted nor authenticated",
        ),
        (
            "node = 0\nmembers = [\"127.0.0.1:1\"]\ntrusted-network = true\nrdma-port = 1",
            "for the transport verbs",
        ),
        (
            "node = 0\nmembers = [\"127.0.0.1:1\"]\ntrusted-network = true\ntransport = \"verbs\"\nmtu = 512",
            "1024, 2048 or 4096",
        ),
        ("node = 0\nmembers = [\"127.0.0.1:1\"]\ncluster-key = \"/nowhere\"", "/nowhere"),
    ] {
        let error = parsed(text).unwrap().cluster().err().unwrap().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
