//! Requests as bytes: each has its own, which are decoded again, and says which partition it is about.
//!
//! A test fails if the bytes of a request change, so that members of two versions would not understand each other.

use gannet_storage::BucketUpdateWriter;

use super::*;

/// A request has these bytes, which are decoded again, also with what follows them; fewer are no request.
fn assert_bytes<R: TableRequest + Copy + std::fmt::Debug + PartialEq>(
    request: R,
    expected: &[u8; 28],
) {
    assert_eq!(&request.encode(), expected, "{request:?}");
    let more = [expected, &b"row key"[..]].concat();
    assert_eq!(R::decode(&more), Some((request, &b"row key"[..])));
    assert_eq!(R::decode(&expected[1..]), None);
}

#[test]
fn each_request_about_a_table_has_its_bytes() {
    let (table, partition, owner) = (0x100_0001, 0x203, Owner(9));
    let key = u64::MAX - 3;
    assert_bytes(
        Read { table, key, owner },
        b"\x01\0\0\x01\0\0\0\0\0\0\0\0\xfc\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        LockRow {
            table,
            mode: LockMode::Delete,
            passes: Passes::All,
            value_bytes: 0x405_0607,
            key,
            owner,
        },
        b"\x01\0\0\x01\x07\x06\x05\x04\x03\x03\0\0\xfc\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        Validate { table, partition, bucket: 0x405_0607, version: 8, owner },
        b"\x01\0\0\x01\x07\x06\x05\x04\x03\x02\0\0\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        ValidateRange { table, partition, shape: 0x1_0000_0000, owner },
        b"\x01\0\0\x01\0\0\0\0\x03\x02\0\0\0\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        ValidateMany { table, partition, owner },
        b"\x01\0\0\x01\0\0\0\0\x03\x02\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    let unlock = Unlock { table, partition, bucket: 0x405_0607, key, owner };
    assert_bytes(
        unlock,
        b"\x01\0\0\x01\x07\x06\x05\x04\x03\x02\0\0\xfc\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0\0\0\0\0",
    );
    assert_eq!(LockRow::decode(&unlock.encode()), None, "the same bytes are a LOCK of no mode");
    assert_bytes(
        Scan { table, partition, rows: 5, shape: 6, owner },
        b"\x01\0\0\x01\x05\0\0\0\x03\x02\0\0\x06\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        CopyBuckets { table, partition, bucket: 5, offset: 6, owner },
        b"\x01\0\0\x01\x05\0\0\0\x03\x02\0\0\x06\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        FoldBuckets { table, partition, bucket: 5, owner },
        b"\x01\0\0\x01\x05\0\0\0\x03\x02\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        ValidateSpan { table, partition, bucket: 5, changes: 6, owner },
        b"\x01\0\0\x01\x05\0\0\0\x03\x02\0\0\x06\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        Expect { table, partition, rows: 5, owner },
        b"\x01\0\0\x01\x05\0\0\0\x03\x02\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        Barrier { table, partition, owner },
        b"\x01\0\0\x01\0\0\0\0\x03\x02\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
}

#[test]
fn each_request_about_reservations_has_its_bytes() {
    let (table, key, owner) = (0x100_0001, u64::MAX - 3, Owner(9));
    assert_bytes(
        Reserve { table, hold_ms: 0x405_0607, waits: 1, hash: key, owner },
        b"\x01\0\0\x01\x07\x06\x05\x04\x01\0\0\0\xfc\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        Share { table, hold_ms: 0x405_0607, waits: 1, shape: 6, owner },
        b"\x01\0\0\x01\x07\x06\x05\x04\x01\0\0\0\x06\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(
        ReleaseRow { table, hash: key, owner },
        b"\x01\0\0\x01\0\0\0\0\0\0\0\0\xfc\xff\xff\xff\xff\xff\xff\xff\x09\0\0\0\0\0\0\0",
    );
    assert_bytes(OfHolder { owner }, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0");
}

#[test]
fn a_request_tells_its_partition() {
    let partitioning = Partitioning::new(16).unwrap();
    let of = |kind, payload: &[u8]| partition_of(kind, payload, partitioning);
    let (table, key, owner) = (1, 77, Owner(9));
    let home = Some(partitioning.partition(key));
    assert_eq!(of(READ, &Read { table, key, owner }.encode()), home);
    let (mode, passes) = (LockMode::Update, Passes::Nothing);
    let lock = LockRow { table, mode, passes, value_bytes: 5, key, owner };
    assert_eq!(of(LOCK, &lock.encode()), home);
    assert_eq!(of(SCAN, &Scan { table, partition: 7, rows: 5, shape: 6, owner }.encode()), Some(7));
    let mut unit = Vec::new();
    BucketUpdateWriter::begin(&mut unit, (table, 11, 3), 4, owner).finish();
    assert_eq!([BACKUP, PRIMARY].map(|kind| of(kind, &unit)), [Some(11); 2]);
    assert_eq!([LOG, LOG_PART, SCAN].map(|kind| of(kind, &[1, 2])), [None; 3]);
}

#[test]
fn what_is_encoded_is_decoded() {
    for mode in [LockMode::Update, LockMode::Insert, LockMode::Delete] {
        for passes in [Passes::Nothing, Passes::Readers, Passes::All] {
            let (value_bytes, owner) = (2, Owner(4));
            let lock = LockRow { table: 1, mode, passes, value_bytes, key: 3, owner };
            assert_eq!(LockRow::decode(&lock.encode()), Some((lock, &[][..])));
        }
    }
    let mut bytes = Vec::new();
    let buckets = [(1, 2), (u32::MAX, u64::MAX - 1)];
    buckets.iter().for_each(|&(bucket, version)| push_bucket_version(bucket, version, &mut bytes));
    assert_eq!(bytes[..BUCKET_VERSION_BYTES], *b"\x01\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(bytes.len(), 2 * BUCKET_VERSION_BYTES);
    assert_eq!(bucket_versions(&bytes).unwrap().collect::<Vec<_>>(), buckets);
    assert!(bucket_versions(&bytes[1..]).is_none());
    let rows = [(1, 2, 3), (u32::MAX, u64::MAX - 1, u64::MAX - 2)];
    bytes.clear();
    rows.iter().for_each(|&row| push_row_version(row, &mut bytes));
    assert_eq!(bytes[..ROW_VERSION_BYTES], *b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
    assert_eq!(row_versions(&bytes).unwrap().collect::<Vec<_>>(), rows);
    assert!(row_versions(&bytes[1..]).is_none());
    let id = TransactionId { epoch: 1, node: 2, worker: 3, coroutine: 4, counter: u64::MAX - 5 };
    let part = RecordPart { id, record_bytes: 70_000, offset: 60_000, bytes: b"part" };
    let mut bytes = Vec::new();
    encode_part(&part, &mut bytes);
    let header = b"\x01\0\0\0\x02\0\x03\0\xfa\xff\xff\xff\xff\xff\xff\xff\x04\0\0\0\0\0\0\0\x70\x11\x01\0\x60\xea\0\0";
    assert_eq!(bytes, [&header[..], b"part"].concat());
    assert_eq!(decode_part(&bytes), Some(part));
    assert_eq!(decode_part(&bytes[..PART_HEADER_BYTES - 1]), None);
    for status in 1..=17 {
        assert_eq!(Status::from_wire(status) as u16, status);
    }
}
