from fedasmu.cli import main

main()
