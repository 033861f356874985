"""What several tests share: running the command, fakes, a scripted service, crashes."""
