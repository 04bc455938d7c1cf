//! READs of another process's memory; here the memory belongs to another device in the same process.
//!
//! Each word of the region contains its own number. A test fails if a READ returns other bytes than the region has, if
//! READs end in another order than they began, if an impossible READ does not say why, or if a dropped region can be read.

use gannet_rpc::{OneSided, OneSidedPair, ReadError, RemoteRegion, SharedRegion};

use crate::nodes::options;

const REGION_BYTES: usize = 3 << 20;
const READ_BYTES_MAX: usize = 100_000;
const READS: usize = 8;

/// A region whose words contain their own numbers, and the two ends of a connection.
fn opened() -> (SharedRegion, OneSidedPair, OneSidedPair) {
    let [reader, owner] = [0, 1].map(|node| OneSided::open(&options(node, 2)).unwrap());
    let mut region = owner.region(REGION_BYTES).unwrap();
    for (word, bytes) in (0_u32..).zip(region.bytes_mut().chunks_mut(4)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let mut reading = reader.pair(READS, READ_BYTES_MAX).unwrap();
    let mut owning = owner.pair(1, 1).unwrap();
    owning.connect(&reading.address()).unwrap();
    reading.connect(&owning.address()).unwrap();
    (region, reading, owning)
}

/// The result of the oldest READ.
fn end(pair: &mut OneSidedPair) -> Result<Vec<u8>, ReadError> {
    loop {
        if let Some(ended) = pair.poll() {
            return ended.map(<[u8]>::to_vec);
        }
        std::thread::yield_now();
    }
}

#[test]
fn reads_return_the_region() {
    let (mut region, mut reader, _owner) = opened();
    let remote: RemoteRegion = region.address().parse().unwrap();
    let expected = region.bytes_mut().to_vec();
    for (at, bytes) in
        [(0, 8), (5, 1), (4_000, 9_000), (REGION_BYTES - READ_BYTES_MAX, READ_BYTES_MAX)]
    {
        reader.read(&remote, at as u64, bytes).unwrap();
        assert!(end(&mut reader).unwrap() == expected[at..at + bytes], "{bytes} bytes at {at}");
    }
    // The maximum number at once, repeatedly; READs end in order.
    for round in 0..5 {
        let places: Vec<_> =
            (0..READS).map(|index| (round * 7 + index * 1_000, 64 + index)).collect();
        for &(at, bytes) in &places {
            reader.read(&remote, at as u64, bytes).unwrap();
        }
        let error = reader.read(&remote, 0, 8).unwrap_err();
        assert!(matches!(error, ReadError::Busy { reads: 8 }), "{error}");
        for (at, bytes) in places {
            assert_eq!(end(&mut reader).unwrap(), expected[at..at + bytes]);
        }
        assert!(reader.poll().is_none());
    }
    // Later reads see later writes.
    region.bytes_mut()[..4].copy_from_slice(b"newer"[..4].as_ref());
    reader.read(&remote, 0, 4).unwrap();
    assert_eq!(end(&mut reader).unwrap(), b"newe");
}

#[test]
fn impossible_reads_say_why() {
    let (region, mut reader, _owner) = opened();
    let remote: RemoteRegion = region.address().parse().unwrap();
    let error = reader.read(&remote, 0, READ_BYTES_MAX + 1).unwrap_err();
    assert!(error.to_string().contains("100001 bytes are more than the 100000"), "{error}");
    let error = reader.read(&remote, REGION_BYTES as u64 - 7, 8).unwrap_err();
    assert!(matches!(error, ReadError::Outside { .. }), "{error}");
    let mut lonely = OneSided::open(&options(0, 2)).unwrap().pair(1, 8).unwrap();
    let error = lonely.read(&remote, 0, 8).unwrap_err();
    assert!(matches!(error, ReadError::NotConnected), "{error}");
    assert!(lonely.connect("elsewhere").unwrap_err().to_string().contains("elsewhere"));
    for wrong in ["", "region1", "region1 at=x key=1 bytes=2", "region1 at=1 key=1 bytes=2 more"] {
        assert!(wrong.parse::<RemoteRegion>().is_err(), "{wrong:?}");
    }
}

#[test]
fn a_dropped_region_cannot_be_read() {
    let (region, mut reader, _owner) = opened();
    let remote: RemoteRegion = region.address().parse().unwrap();
    reader.read(&remote, 0, 8).unwrap();
    assert_eq!(end(&mut reader).unwrap().len(), 8);
    drop(region);
    reader.read(&remote, 0, 8).unwrap();
    reader.read(&remote, 8, 8).unwrap();
    let error = end(&mut reader).unwrap_err();
    assert!(matches!(error, ReadError::Failed { .. }), "{error}");
    assert!(end(&mut reader).is_err(), "those behind it fail, too");
    let error = reader.read(&remote, 0, 8).unwrap_err();
    assert!(matches!(error, ReadError::Failed { .. }), "{error}");
}
