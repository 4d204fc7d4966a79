"""What `CountedEngine` runs."""

from posttrain.engines.worker import Worker, main


class CountedWorker(Worker):
    def _hear(self, message):
        if "submit" in message:
            print(f"{len(message['submit'])} rows", flush=True)
        super()._hear(message)


if __name__ == "__main__":
    main(CountedWorker)
