package gateway.spark;

/** What cannot be done, by the names and in the words of the Python side, so that either tells the same. */
class Problem extends IllegalArgumentException {
  Problem(String message) {
    super(message);
  }

  Problem(String message, Throwable cause) {
    super(message, cause);
  }
}

class InvalidRequest extends Problem {
  InvalidRequest(String message) {
    super(message);
  }
}

/** There is no store where one should be, or none that this version can read. */
class NotAStore extends Problem {
  NotAStore(String message) {
    super(message);
  }
}

/** A Kafka that is not to be had, or refuses. */
class StoreReadOnly extends Problem {
  StoreReadOnly(String message) {
    super(message);
  }
}

class StoreDamaged extends Problem {
  StoreDamaged(String message) {
    super(message);
  }
}

class UnknownTopic extends Problem {
  UnknownTopic(String message) {
    super(message);
  }
}

class UnknownPartition extends Problem {
  UnknownPartition(String message) {
    super(message);
  }
}

class OffsetOutOfRange extends Problem {
  final long first;

  OffsetOutOfRange(String message, long first) {
    super(message);
    this.first = first;
  }
}

/** Records [first, next) are not what was written. */
class CorruptChunk extends Problem {
  final long next;

  CorruptChunk(String topic, int partition, long first, long next) {
    super("damaged chunk: topic=" + topic + " partition=" + partition + " offsets=[" + first + ", " + next + ")");
    this.next = next;
  }
}

/** As CorruptChunk, with the way around it. */
class Damaged extends Problem {
  Damaged(CorruptChunk why) {
    super(
        why.getMessage() + ". What lies before and from offset " + why.next + " on can be read, by endingOffsets and "
            + "startingOffsets; `gateway store check` names everything that is damaged",
        why);
  }
}

/** Records that were to be read are no longer there. */
class HistoryGone extends Problem {
  static final String WAY_ON =
      "Retention was faster than this reader; with failOnDataLoss=false it goes on with what is left.";

  HistoryGone(String message) {
    super(message + ". " + WAY_ON);
  }
}

class EndpointUnreachable extends Problem {
  EndpointUnreachable(String message, Throwable cause) {
    super(message, cause);
  }
}

/** A gateway refused what it was asked; or what answered is none. */
class TargetError extends Problem {
  TargetError(String message) {
    super(message);
  }

  TargetError(String message, Throwable cause) {
    super(message, cause);
  }
}
